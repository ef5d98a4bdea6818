"""KFLLLA against its formulae in float64, laplace-torch, and its limits."""

import math
import sys

import pytest
import torch
from fitted_methods import features_of, laplace, posterior_predictive
from laplace import KronLaplace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.inference import Laplace, Prediction, predict
from probattn.inference.methods.ensemble import mix
from probattn.inference.methods.features import Features
from probattn.models import Classifier, Supervised, ViT
from probattn.models.likelihoods import Categorical

F64 = torch.float64
SHAPE = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 8, "depth": 2, "heads": 2, "mlp_dim": 8}
KEP_SVGP = KEPSVGPAttention.partial(rank=2, merge="concat", tokens=4)


def vit(attention, number):
    model = Classifier(ViT(**SHAPE, attention=attention), num_data=number)
    return model, guides.for_model(model), torch.randn(number, 1, 4, 4), torch.arange(number) % 3


def mlp(classes=3, *, bias=True, number=40):
    """A ReLU network in float64, with sharp outputs, its inputs and labels."""
    network = nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, classes, bias=bias)).double()
    with torch.no_grad():
        network[-1].weight.mul_(3)
    x = torch.randn(number, 2, dtype=F64)
    return Supervised(network, Categorical(), num_data=number), x, network(x).argmax(-1)


def by_hand(head, phi, precision):
    """Precisions of vec(W) and b: (Σ Λ) ⊗ (mean of φ φᵀ) + δ I, and Σ Λ + δ I, with Λ = diag(p) − p pᵀ."""
    p = head(phi).softmax(-1).detach()
    outputs = sum(torch.diag(row) - torch.outer(row, row) for row in p)
    inputs = sum(torch.outer(row, row) for row in phi) / len(phi)
    weights = torch.kron(outputs, inputs)
    return weights + precision * torch.eye(len(weights), dtype=F64), outputs + precision * torch.eye(
        len(p.T), dtype=F64
    )


def covariance_of(predictor):
    """Covariance of the samples of the flattened weights, without the bias."""
    return predictor.samples[:, : predictor.predictor.model.network[-1].weight.numel()].T.cov()


@pytest.mark.parametrize("bias", [True, False])
def test_samples_have_the_moments_of_the_kronecker_factored_posterior(bias):
    model, x, y = mlp(bias=bias)
    head, phi = model.network[-1], model.network[:-1](x).detach()
    samples = laplace(model, None, [(x, y)], prior_precision=0.7, num_weight_samples=50_000).samples
    precisions = by_hand(head, phi, 0.7)
    for values, parameter, precision in zip(
        samples.split([30, 3][: 1 + bias], 1), head.parameters(), precisions, strict=False
    ):
        covariance = torch.linalg.inv(precision)
        error = (covariance.square() + torch.outer(covariance.diagonal(), covariance.diagonal())).div(50_000).sqrt()
        assert ((values.T.cov() - covariance).abs() < 5 * error).all()
        deviation = values.mean(0) - parameter.detach().flatten()
        assert (deviation.abs() < 5 * (covariance.diagonal() / 50_000).sqrt()).all()


def test_predictions_average_over_the_samples_of_the_weights():
    model, x, y = mlp()
    new = torch.randn(6, 2, dtype=F64)
    predictor = laplace(model, None, [(x, y)], prior_precision=0.7, num_weight_samples=7)
    result, plain = predictor.predict(new), predict(model, None, new)
    phi = model.network[:-1](new).detach()
    probs = torch.stack([phi @ row[:30].view(3, 10).T + row[30:] for row in predictor.samples]).softmax(-1)
    torch.testing.assert_close(result.probs, probs.mean(0))
    torch.testing.assert_close(result.expected_entropy, torch.special.entr(probs).sum(-1).mean(0))
    torch.testing.assert_close(result.energy, plain.energy)
    assert (result.probs - plain.probs).abs().max() > 1e-2


def test_they_are_those_of_laplace_torch():
    model, x, y = mlp()
    phi, new = model.network[:-1](x).detach(), torch.randn(6, 2, dtype=F64)
    theirs = KronLaplace(nn.Sequential(model.network[-1]), "classification", prior_precision=2.0)
    theirs.fit(DataLoader(TensorDataset(phi, y), batch_size=len(y)))
    ours = laplace(model, None, [(x, y)], prior_precision=2.0, num_weight_samples=10_000)
    expected = theirs(model.network[:-1](new).detach(), link_approx="mc", n_samples=10_000)
    torch.testing.assert_close(ours.predict(new).probs, expected, rtol=0, atol=0.02)
    assert math.isclose(ours.log_marginal_likelihood, theirs.log_marginal_likelihood().item(), rel_tol=1e-9)


def test_of_one_example_the_factors_are_exact():
    model, x, y = mlp(bias=False)
    head, phi = model.network[-1], model.network[:-1](x[:1]).detach()

    def loss(weights):
        return nn.functional.cross_entropy(phi @ weights.view(3, 10).T, y[:1])

    hessian = torch.autograd.functional.hessian(loss, head.weight.detach().flatten())
    covariance = torch.linalg.inv(hessian + 0.3 * torch.eye(30, dtype=F64))
    predictor = laplace(model, None, [(x[:1], y[:1])], prior_precision=0.3, num_weight_samples=100_000)
    torch.testing.assert_close(covariance_of(predictor), covariance, rtol=0, atol=0.05 * covariance.max().item())


@pytest.mark.parametrize("precision", [1e12, math.inf])
@pytest.mark.parametrize("attention", [SoftmaxAttention, KEP_SVGP])
def test_infinite_prior_precision_is_the_plain_prediction(attention, precision):
    model, guide, x, y = vit(attention, 12)
    predictor = laplace(model, guide, [(x[:8], y[:8]), (x[8:], y[8:])], num_samples=4, prior_precision=precision)
    torch.manual_seed(5)
    plain = predict(model, guide, [(x, y)], num_samples=4)
    torch.manual_seed(5)
    result = predictor.predict([(x, y)])
    for field in ("probs", "expected_entropy", "energy"):
        torch.testing.assert_close(getattr(result, field), getattr(plain, field), rtol=0, atol=1e-6)
    assert torch.equal(result.labels, y)
    assert result.probs.dtype == torch.float32
    assert predictor.prior_precision == precision


def test_a_stochastic_network_is_averaged_over_its_draws():
    model, guide, x, y = vit(KEP_SVGP, 12)
    predictor = laplace(model, guide, [(x, y)], num_samples=3, prior_precision=0.5)
    torch.manual_seed(5)
    phi = features_of(model, guide, x, num_samples=3).values
    torch.manual_seed(5)
    result = predictor.predict(x)
    logits = torch.stack([phi @ row[:24].view(3, 8).T + row[24:] for row in predictor.samples])
    probs = logits.softmax(-1).mean(0).detach()
    assert (probs[0] - probs[1]).abs().max() > 1e-4
    torch.testing.assert_close(result.probs, probs.mean(0))
    assert (result.mutual_information > 0).all()


def sampled_weights(head, phi, y_phi, precision, number):
    """Mean probabilities and entropies over draws of W and b from the dense posterior, features ``(..., D)``."""
    weights, bias = by_hand(head, phi, precision)
    tril = torch.linalg.cholesky(torch.linalg.inv(weights))
    bias_tril = torch.linalg.cholesky(torch.linalg.inv(bias))
    mean, entropies = 0.0, 0.0
    for _ in range(number // 100):
        w = head.weight.detach() + (torch.randn(100, len(weights), dtype=F64) @ tril.T).view(100, *head.weight.shape)
        b = head.bias.detach() + torch.randn(100, len(bias), dtype=F64) @ bias_tril.T
        probs = torch.einsum("...d,kcd->k...c", y_phi, w).add_(b.view(100, *[1] * (y_phi.dim() - 1), -1)).softmax(-1)
        mean = mean + probs.mean(0) / (number // 100)
        entropies = entropies + torch.special.entr(probs).sum(-1).mean(0) / (number // 100)
    return mean, entropies


@pytest.mark.parametrize("precision", [0.3, 5.0])
def test_expected_entropy_is_that_of_draws_of_the_last_layers_weights(precision):
    """Draws of the dense Gaussian of all weights."""
    model, x, y = mlp()
    head, phi, new = model.network[-1], model.network[:-1](x).detach(), 2 * torch.randn(8, 2, dtype=F64)
    mean, entropies = sampled_weights(head, phi, model.network[:-1](new).detach(), precision, 20_000)
    result = laplace(model, None, [(x, y)], num_weight_samples=10_000, prior_precision=precision).predict(new)
    torch.testing.assert_close(result.expected_entropy, entropies, rtol=0, atol=0.015)
    torch.testing.assert_close(result.probs, mean, rtol=0, atol=0.015)
    information = torch.special.entr(mean).sum(-1) - entropies
    torch.testing.assert_close(result.mutual_information, information, rtol=0, atol=0.02)
    assert information.max() > 0.05


def test_expected_entropy_averages_draws_of_features_and_of_weights():
    """Two draws of the features of each example, each under the same Gaussian of the weights."""
    model, x, y = mlp()
    head, values = model.network[-1], torch.randn(2, 5, 10, dtype=F64)
    predictor = laplace(model, None, [(x, y)], num_weight_samples=20_000, prior_precision=1.0)
    found = predictor.predict_features(Features(values, head, Prediction(probs=torch.zeros(5, 3, dtype=F64))))
    mean, entropies = sampled_weights(head, model.network[:-1](x).detach(), values, 1.0, 20_000)
    torch.testing.assert_close(found.expected_entropy, entropies.mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(found.probs, mean.mean(0), rtol=0, atol=0.015)


@pytest.mark.parametrize("attention", [SoftmaxAttention, KEP_SVGP])
def test_at_infinite_precision_the_mutual_information_is_that_of_the_layers(attention):
    """Zero for softmax attention, that of the draws of u for KEP-SVGP; with a finite one it is larger for both."""
    model, guide, x, y = vit(attention, 12)
    found = features_of(model, guide, x, num_samples=6)
    plain = found.prediction.mutual_information
    infinite = laplace(model, guide, [(x, y)], prior_precision=math.inf).predict_features(found)
    torch.testing.assert_close(infinite.mutual_information, plain, rtol=0, atol=1e-6)
    finite = laplace(model, guide, [(x, y)], prior_precision=0.05).predict_features(found)
    assert (finite.mutual_information > plain + 1e-2).all()
    assert (plain.max() > 1e-5) == (attention is KEP_SVGP)


def test_ensembles_keep_the_information_of_their_members():
    model, x, y = mlp()
    new = torch.randn(6, 2, dtype=F64)
    options = {"prior_precision": 0.3, "num_weight_samples": 2000}
    members = [laplace(model, None, [(x, y)], **options).predict(new) for _ in range(2)]
    mixed = mix(members)
    between = mixed.entropy - (members[0].entropy + members[1].entropy) / 2
    within = (members[0].mutual_information + members[1].mutual_information) / 2
    torch.testing.assert_close(mixed.mutual_information, within + between)
    assert (mixed.mutual_information > 1e-3).any()


def test_the_posterior_sees_each_example_with_one_draw_of_its_own():
    model, x, y = mlp(bias=False, number=7)
    head, draws = model.network[-1], torch.randn(3, 7, 10, dtype=F64)
    predictor = Laplace(posterior_predictive(model, None), prior_precision=1.5, num_weight_samples=100_000)
    predictor.fit_features(Features(draws, head, Prediction(probs=head(draws).softmax(-1).mean(0), labels=y)))
    phi = torch.stack([draws[i % 3, i] for i in range(7)])
    weights, _ = by_hand(head, phi, 1.5)
    covariance = torch.linalg.inv(weights)
    torch.testing.assert_close(covariance_of(predictor), covariance, rtol=0, atol=0.05 * covariance.max().item())


def test_far_from_the_data_confidence_stays_below_one():
    """A ReLU network's own goes to 1 along a ray; Gaussian weights keep it on a plateau (Kristiadi et al., 2020)."""
    model, x, y = mlp()
    predictor = laplace(model, None, [(x, y)], prior_precision=1.0)
    ray = torch.tensor([[math.cos(angle), math.sin(angle)] for angle in torch.arange(0, 6.28, 0.7).tolist()], dtype=F64)
    plain, far, farther = predict(model, None, 1e5 * ray), predictor.predict(1e5 * ray), predictor.predict(1e7 * ray)
    sure = plain.probs.amax(-1) > 1 - 1e-6
    assert sure.sum() > 6
    assert (far.probs.amax(-1)[sure] < 0.99).all()
    assert (far.entropy[sure] > plain.entropy[sure] + 1e-2).all()
    torch.testing.assert_close(far.probs, farther.probs, rtol=1e-3, atol=1e-3)


def test_the_chosen_prior_precision_maximises_the_marginal_likelihood():
    model, x, y = mlp()
    best = laplace(model, None, [(x, y)])
    values = [best.prior_precision * factor for factor in (0.1, 0.5, 0.9, 1.1, 2.0, 10.0)]
    others = [laplace(model, None, [(x, y)], prior_precision=value).log_marginal_likelihood for value in values]
    assert best.log_marginal_likelihood > max(others)
    same = laplace(model, None, [(x, y)], prior_precision=best.prior_precision)
    assert math.isclose(same.log_marginal_likelihood, best.log_marginal_likelihood, rel_tol=1e-9)


def test_order_and_batches_of_the_training_data_do_not_matter():
    model, x, y = mlp()
    new = torch.randn(6, 2, dtype=F64)
    shuffled = DataLoader(TensorDataset(x, y), batch_size=9, shuffle=True)
    results = []
    for data in (shuffled, [(x, y)]):
        predictor = laplace(model, None, data, num_weight_samples=20_000)
        results.append((predictor.log_marginal_likelihood, predictor.predict(new).probs))
    assert math.isclose(results[0][0], results[1][0], rel_tol=1e-9)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=0.015)


def test_the_model_is_left_as_it_was():
    model, guide, x, y = vit(KEP_SVGP, 12)
    model.network.head.requires_grad_(False)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    laplace(model, guide, [(x, y)], num_samples=2).predict(x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(each.training and not each._forward_hooks and not each._forward_pre_hooks for each in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.network.head.weight.requires_grad


@pytest.mark.parametrize("precision", [0.0, -1.0, math.nan])
def test_a_precision_that_is_none_is_refused(precision):
    model, x, y = mlp()
    with pytest.raises(ValueError, match="prior_precision must be positive"):
        laplace(model, None, [(x, y)], prior_precision=precision)


def test_missing_labels_and_a_missing_library_are_said_clearly(monkeypatch):
    model, x, y = mlp()
    with pytest.raises(ValueError, match="have none"):
        laplace(model, None, [x])
    for wrong, message in ((y.float(), "integer class indices, got torch.float32"), (y + 1, r"lie in 0\.\.2")):
        with pytest.raises(ValueError, match=message):
            laplace(model, None, [(x, wrong)])
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(ImportError, match=r"pip install 'probattn\[laplace\]'"):
        laplace(model, None, [(x, y)])
