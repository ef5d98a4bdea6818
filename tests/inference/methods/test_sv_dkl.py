"""SV-DKL against quadrature and its limits (its marginals against GPyTorch's: test_gpytorch_check.py)."""

import importlib

import numpy as np
import pytest
import torch
from fitted_methods import features_of, posterior_predictive, sv_dkl
from torch import nn

from probattn import KEPSVGPAttention, guides
from probattn.inference import SVDKL, Prediction
from probattn.inference.methods.features import Features
from probattn.inference.methods.sv_dkl_gps import FeatureGPs
from probattn.models import Classifier, Supervised, ViT
from probattn.models.likelihoods import Categorical

sv_dkl_module = importlib.import_module("probattn.inference.methods.sv_dkl")
SHAPE = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 8, "depth": 2, "heads": 2, "mlp_dim": 8}


def small(inputs=1, classes=3, number=60):
    """A network whose features are its inputs, in affine disguise; its inputs and labels."""
    network = nn.Sequential(nn.Linear(inputs, inputs), nn.Linear(inputs, classes))
    with torch.no_grad():
        network[0].weight.copy_(2 * torch.eye(inputs))
    x = torch.randn(number, inputs)
    return Supervised(network, Categorical(), num_data=number), x, network(x).argmax(-1)


def scramble(gps):
    """Puts q(u) and the kernels anywhere."""
    with torch.no_grad():
        for parameter in gps.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


def quadrature(predictor, x):
    """Mean probabilities, entropies and energies by Gauss–Hermite quadrature over both GPs, in float64."""
    points, weights = np.polynomial.hermite_e.hermegauss(60)
    points, weights = torch.from_numpy(points), torch.from_numpy(weights / weights.sum())
    phi = predictor.predictor.model.network[:-1](x)
    marginals = predictor.gps.marginals(predictor.scale(phi))
    mixing = predictor.mixing.weight.double(), predictor.mixing.bias.double()
    totals = [0, 0, 0]
    for a, weight_a in zip(points, weights, strict=True):
        for b, weight_b in zip(points, weights, strict=True):
            f = marginals.mean.double() + marginals.stddev.double() * torch.stack([a, b])
            logits = f @ mixing[0].T + mixing[1]
            p = logits.softmax(-1)
            parts = p, -(p * p.log()).sum(-1), -logits.logsumexp(-1)
            totals = [total + weight_a * weight_b * part for total, part in zip(totals, parts, strict=True)]
    return [total.detach().float() for total in totals]


def test_each_gp_sees_its_own_feature_alone():
    gps = FeatureGPs(3, grid_size=12)
    scramble(gps)
    gps.eval()
    z = torch.rand(7, 3) - 0.5
    other = z.clone()
    other[:, 1] += 0.3
    changed = (gps.marginals(z).mean != gps.marginals(other).mean).any(0)
    assert changed.tolist() == [False, True, False]


@pytest.mark.parametrize("bias", [True, False])
def test_before_the_first_step_the_gps_mean_is_the_pretrained_network(bias):
    model, x, y = small(2)
    model.network[-1] = nn.Linear(2, 3, bias=bias)
    predictor = sv_dkl(model, None, [(x, y)], epochs=0)
    f = predictor.gps.marginals(predictor.scale(model.network[:-1](x))).mean
    torch.testing.assert_close(predictor.mixing(f), model.network(x), rtol=1e-4, atol=1e-4)


def test_predictions_average_the_softmax_over_the_gps():
    model, x, y = small(2)
    predictor = sv_dkl(model, None, [(x, y)], epochs=1, num_gp_samples=40_000)
    new = torch.randn(5, 2)
    result = predictor.predict([(new, y[:5])])
    probs, entropy, energy = quadrature(predictor, new)
    plugged = predictor.mixing(predictor.gps.marginals(predictor.scale(model.network[:-1](new))).mean).softmax(-1)
    assert (probs - plugged).abs().max() > 0.03
    torch.testing.assert_close(result.probs, probs, rtol=0, atol=0.01)
    torch.testing.assert_close(result.expected_entropy, entropy, rtol=0, atol=0.01)
    torch.testing.assert_close(result.energy, energy, rtol=0, atol=0.02)
    assert torch.equal(result.labels, y[:5])


def test_the_batches_of_an_epoch_share_the_data_sets_evidence_lower_bound():
    """Their sum is Σ E log p − KL, the KL counted once, whatever the batches are."""
    model, x, y = small(2)
    predictor = sv_dkl(model, None, [(x, y)], epochs=1)
    z = predictor.scale(model.network[:-1](x))
    with torch.no_grad():
        batches = zip(z.split(7), y.split(7), strict=True)
        parts = [len(part) * predictor.elbo(part, labels, num_data=60, num_samples=40_000) for part, labels in batches]
    strategy = predictor.gps.variational_strategy
    q, prior = strategy.variational_distribution, strategy.prior_distribution
    pairs = zip(q.mean, q.covariance_matrix, prior.covariance_matrix, strict=True)
    kl = 0.0
    for mean, covariance, prior_covariance in pairs:
        mean, covariance, prior_covariance = mean.double(), covariance.double(), prior_covariance.double()
        ratio = torch.linalg.solve(prior_covariance, covariance)
        kl += 0.5 * (ratio.trace() - len(mean) - torch.logdet(ratio))
        kl += 0.5 * mean @ torch.linalg.solve(prior_covariance, mean)
    points, weights = np.polynomial.hermite_e.hermegauss(40)
    marginals = predictor.gps.marginals(z)
    expected = kl
    for a, weight_a in zip(points, weights / weights.sum(), strict=True):
        for b, weight_b in zip(points, weights / weights.sum(), strict=True):
            f = marginals.mean + marginals.stddev * torch.tensor([a, b], dtype=torch.float32)
            loss = nn.functional.cross_entropy(predictor.mixing(f), y, reduction="sum")
            expected = expected + weight_a * weight_b * loss.item()
    assert kl > 1
    assert len(parts) == 9
    assert -sum(parts) == pytest.approx(expected.item(), abs=0.3)


def test_it_learns_what_the_last_layer_cannot():
    """Inside or outside of an interval of the one feature."""
    network = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 2))
    x = torch.rand(400, 1) * 4 - 2
    y = (x[:, 0].abs() > 1).long()
    model = Supervised(network, Categorical(), num_data=400)
    new = torch.linspace(-1.9, 1.9, 39)[:, None]
    outside = new[:, 0].abs() > 1
    clear = (new[:, 0].abs() - 1).abs() > 0.15
    result = sv_dkl(model, None, [(x, y)], epochs=40, lr=0.05).predict(new)
    assert torch.equal(result.probs.argmax(-1)[clear], outside.long()[clear])
    assert (result.probs.amax(-1)[clear] > 0.6).all()


def test_it_is_unsure_where_there_were_no_data():
    network = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 2))
    x = torch.cat([torch.rand(200, 1) - 3, torch.rand(200, 1) + 2])
    y = (x[:, 0] > 0).long()
    result = sv_dkl(
        Supervised(network, Categorical(), num_data=400), None, [(x, y)], epochs=30, num_gp_samples=1000
    ).predict(torch.tensor([[-2.5], [0.0], [2.5]]))
    information = result.mutual_information
    assert information[1] > 3 * information[0]
    assert information[1] > 3 * information[2]


def test_far_outside_the_training_data_it_predicts_as_at_their_bounds():
    model, x, y = small(2)
    predictor = sv_dkl(model, None, [(x, y)], epochs=1)
    results = []
    for distance in (1e3, 1e30):
        torch.manual_seed(1)
        results.append(predictor.predict(torch.tensor([[distance, -distance], [-distance, distance]])))
    assert results[0].probs.isfinite().all()
    torch.testing.assert_close(results[0].probs, results[1].probs)


def test_a_stochastic_network_is_seen_with_all_its_draws(monkeypatch):
    """Training takes one of them per example and step, at random; predictions average over all."""
    head = nn.Linear(2, 3)
    values = torch.arange(4.0)[:, None, None] + 0.01 * torch.rand(4, 50, 2)
    found = Features(values, head, Prediction(probs=torch.ones(50, 3) / 3, labels=torch.arange(50) % 3))
    seen, marginals = [], FeatureGPs.marginals
    monkeypatch.setattr(FeatureGPs, "marginals", lambda self, z: seen.append(z) or marginals(self, z))
    monkeypatch.setattr(sv_dkl_module, "BATCH_SIZE", 25)
    model = Supervised(head, Categorical(), num_data=50)
    predictor = SVDKL(posterior_predictive(model, None), epochs=4, num_gp_samples=4000)
    predictor.fit_features(found)
    scaled = predictor.scale(values)
    used = torch.stack([torch.cat(seen)[:, 0].sub(scaled[s].mean()).abs() < 0.02 for s in range(4)])
    assert len(seen) == 8
    assert (used.sum(0) == 1).all()
    assert (used.float().mean(1) > 0.15).all()
    seen.clear()
    result = predictor.predict_features(found)
    separate = []
    for s in range(4):
        found = Features(values[s : s + 1], head, found.prediction)
        separate.append(predictor.predict_features(found).probs)
    assert (separate[0] - separate[3]).abs().max() > 0.05
    torch.testing.assert_close(result.probs, torch.stack(separate).mean(0), rtol=0, atol=0.03)


def test_it_is_the_same_again_from_the_same_seed_and_leaves_the_model_as_it_was():
    model = Classifier(ViT(**SHAPE, attention=KEPSVGPAttention.partial(rank=2, merge="concat", tokens=4)), num_data=12)
    guide, x, y = guides.for_model(model), torch.randn(12, 1, 4, 4), torch.arange(12) % 3
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(sv_dkl(model, guide, [(x[:7], y[:7]), (x[7:], y[7:])], num_samples=3, epochs=2).predict(x).probs)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(module.training for module in model.modules())


def test_everything_is_trained():
    model, x, y = small(2)
    start, end = (sv_dkl(model, None, [(x, y)], epochs=epochs) for epochs in (0, 1))
    for part in ("gps", "mixing"):
        before, after = dict(getattr(start, part).named_parameters()), dict(getattr(end, part).named_parameters())
        assert before.keys() == after.keys()
        assert all(not torch.equal(value, after[name]) for name, value in before.items()), part


def test_a_double_network_and_features_with_labels_on_their_way():
    model, x, y = small(2)
    model.double()
    predictor = sv_dkl(model, None, [(x.double(), y)], epochs=1)
    assert predictor.predict(x.double()).probs.dtype == torch.float64
    phi = features_of(model, None, x.double()).values
    torch.testing.assert_close(predictor.scale(phi).amax(), torch.tensor(0.95, dtype=torch.float64))


def test_what_cannot_work_is_refused():
    model, x, y = small()
    with pytest.raises(ValueError, match="have none"):
        sv_dkl(model, None, [x])
    for wrong, message in ((y.float(), "integer class indices, got torch.float32"), (y - 1, r"lie in 0\.\.")):
        with pytest.raises(ValueError, match=message):
            sv_dkl(model, None, [(x, wrong)])
