"""SV-DKL against quadrature and its limits (its marginals against GPyTorch's: test_gpytorch_check.py)."""

import importlib

import numpy as np
import pytest
import torch
from fitted_methods import posterior_predictive, sv_dkl
from torch import nn

from probattn.inference import SVDKL, Prediction
from probattn.inference.methods.features import Features
from probattn.inference.methods.sv_dkl_gps import FeatureGPs
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical

sv_dkl_module = importlib.import_module("probattn.inference.methods.sv_dkl")


def small(*, bias=True):
    """A network whose features are its two inputs, in affine disguise; 60 inputs and labels."""
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3, bias=bias))
    with torch.no_grad():
        network[0].weight.copy_(2 * torch.eye(2))
    x = torch.randn(60, 2)
    return Supervised(network, Categorical(), num_data=60), x, network(x).argmax(-1)


def quadrature(predictor, z, function):
    """E function(logits) by Gauss–Hermite quadrature over both GPs at scaled features, in float64."""
    points, weights = np.polynomial.hermite_e.hermegauss(40)
    points, weights = torch.from_numpy(points), torch.from_numpy(weights / weights.sum())
    marginals = predictor.gps.marginals(z)
    total = 0.0
    with torch.no_grad():
        for a, weight_a in zip(points, weights, strict=True):
            for b, weight_b in zip(points, weights, strict=True):
                f = marginals.mean.double() + marginals.stddev.double() * torch.stack([a, b])
                logits = f @ predictor.mixing.weight.double().T + predictor.mixing.bias.double()
                total = total + weight_a * weight_b * function(logits)
    return total


def test_each_gp_sees_its_own_feature_alone():
    gps = FeatureGPs(3, grid_size=12).eval()
    with torch.no_grad():
        for parameter in gps.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    z = torch.rand(7, 3) - 0.5
    moved = z + torch.tensor([0.0, 0.3, 0.0])
    assert (gps.marginals(z).mean != gps.marginals(moved).mean).any(0).tolist() == [False, True, False]


@pytest.mark.parametrize("bias", [True, False])
def test_before_the_first_step_the_gps_mean_is_the_pretrained_network(bias):
    model, x, y = small(bias=bias)
    predictor = sv_dkl(model, None, [(x, y)], epochs=0)
    f = predictor.gps.marginals(predictor.scale(model.network[:-1](x))).mean
    torch.testing.assert_close(predictor.mixing(f), model.network(x), rtol=1e-4, atol=1e-4)


def test_predictions_average_the_softmax_over_the_gps():
    model, x, y = small()
    predictor = sv_dkl(model, None, [(x, y)], epochs=1, num_gp_samples=10_000)
    new = torch.randn(5, 2)
    result, z = predictor.predict([(new, y[:5])]), predictor.scale(model.network[:-1](new))
    probs = quadrature(predictor, z, lambda logits: logits.softmax(-1))
    assert (probs - predictor.mixing(predictor.gps.marginals(z).mean).softmax(-1)).abs().max() > 0.03
    entropy = quadrature(predictor, z, lambda logits: torch.special.entr(logits.softmax(-1)).sum(-1))
    energy = quadrature(predictor, z, lambda logits: -logits.logsumexp(-1))
    torch.testing.assert_close(result.probs.double(), probs, rtol=0, atol=0.015)
    torch.testing.assert_close(result.expected_entropy.double(), entropy, rtol=0, atol=0.015)
    torch.testing.assert_close(result.energy.double(), energy, rtol=0, atol=0.04)
    assert torch.equal(result.labels, y[:5])


def test_the_batches_of_an_epoch_share_the_data_sets_evidence_lower_bound():
    """Their sum is Σ E log p − KL, the KL counted once, whatever the batches are."""
    model, x, y = small()
    predictor = sv_dkl(model, None, [(x, y)], epochs=1)
    z = predictor.scale(model.network[:-1](x)).detach()
    with torch.no_grad():
        batches = zip(z.split(7), y.split(7), strict=True)
        parts = [len(part) * predictor.elbo(part, labels, num_data=60, num_samples=40_000) for part, labels in batches]
    strategy = predictor.gps.variational_strategy
    q, prior = strategy.variational_distribution, strategy.prior_distribution
    kl = 0.0
    for mean, covariance, given in zip(q.mean, q.covariance_matrix, prior.covariance_matrix, strict=True):
        mean, covariance, given = mean.double(), covariance.double(), given.double()
        ratio = torch.linalg.solve(given, covariance)
        kl += 0.5 * (ratio.trace() - len(mean) - torch.logdet(ratio) + mean @ torch.linalg.solve(given, mean))
    assert kl > 1
    loss = quadrature(predictor, z, lambda logits: nn.functional.cross_entropy(logits, y, reduction="sum"))
    assert -sum(parts).item() == pytest.approx((loss + kl).item(), abs=0.3)


def test_far_outside_the_training_data_it_predicts_as_at_their_bounds():
    model, x, y = small()
    predictor = sv_dkl(model, None, [(x, y)], epochs=1)
    results = []
    for distance in (1e3, 1e30):
        torch.manual_seed(1)
        results.append(predictor.predict(torch.tensor([[distance, -distance], [-distance, distance]])).probs)
    assert results[0].isfinite().all()
    torch.testing.assert_close(*results)


def test_a_stochastic_network_is_seen_with_all_its_draws(monkeypatch):
    """Training takes one of them per example and step, at random; predictions average over all."""
    head = nn.Linear(2, 3)
    values = torch.arange(4.0)[:, None, None] + 0.01 * torch.rand(4, 50, 2)
    prediction = Prediction(probs=torch.ones(50, 3) / 3, labels=torch.arange(50) % 3)
    inputs, marginals = [], FeatureGPs.marginals
    monkeypatch.setattr(FeatureGPs, "marginals", lambda self, z: inputs.append(z) or marginals(self, z))
    monkeypatch.setattr(sv_dkl_module, "BATCH_SIZE", 25)
    model = Supervised(head, Categorical(), num_data=50)
    predictor = SVDKL(posterior_predictive(model, None), epochs=4, num_gp_samples=2000)
    predictor.fit_features(Features(values, head, prediction))
    scaled = predictor.scale(values)
    used = torch.stack([torch.cat(inputs)[:, 0].sub(scaled[s].mean()).abs() < 0.02 for s in range(4)])
    assert (used.sum(0) == 1).all()
    assert (used.float().mean(1) > 0.15).all()
    result = predictor.predict_features(Features(values, head, prediction))
    single = [predictor.predict_features(Features(values[[s]], head, prediction)).probs for s in range(4)]
    assert (single[0] - single[3]).abs().max() > 0.05
    torch.testing.assert_close(result.probs, torch.stack(single).mean(0), rtol=0, atol=0.04)
