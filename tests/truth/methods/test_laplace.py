"""KFLLLA against its formulae in float64, and its limits."""

import math

import pytest
import torch
from dropout_networks import images, vit
from fitted_methods import features_of, laplace, posterior_predictive
from float64 import eye64, randn64
from torch import nn
from torch.testing import assert_close

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.inference import Laplace, Prediction, predict
from probattn.inference.methods.features import Features
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical

NUMBER = 20_000
"""Samples of weights, where their law is compared."""
KEP_SVGP = KEPSVGPAttention.partial(rank=2, merge="concat", tokens=4)


def mlp(classes=3, *, bias=True, number=40):
    """A ReLU network in float64, with sharp outputs, its inputs and labels."""
    network = nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, classes, bias=bias)).double()
    with torch.no_grad():
        network[-1].weight.mul_(3)
    x = randn64(number, 2)
    return Supervised(network, Categorical(), num_data=number), x, network(x).argmax(-1)


def by_hand(head, phi, precision):
    """Precisions of vec(W) and b: (Σ Λ) ⊗ (mean of φ φᵀ) + δ I, and Σ Λ + δ I, with Λ = diag(p) − p
    pᵀ."""
    p = head(phi).softmax(-1).detach()
    outputs = sum(torch.diag(row) - torch.outer(row, row) for row in p)
    inputs = sum(torch.outer(row, row) for row in phi) / len(phi)
    weights = torch.kron(outputs, inputs)
    identity = eye64(len(weights))
    return weights + precision * identity, outputs + precision * identity[
        : len(outputs), : len(outputs)
    ]


@pytest.mark.parametrize("bias", [True, False])
def test_samples_have_the_moments_of_the_kronecker_factored_posterior(bias):
    model, x, y = mlp(bias=bias)
    head, phi = model.network[-1], model.network[:-1](x).detach()
    samples = laplace(model, None, [(x, y)], prior_precision=0.7, num_weight_samples=NUMBER).samples
    parts = zip(
        samples.split([30, 3][: 1 + bias], 1),
        head.parameters(),
        by_hand(head, phi, 0.7),
        strict=False,
    )
    for values, parameter, precision in parts:
        covariance = torch.linalg.inv(precision)
        error = (
            (covariance.square() + torch.outer(covariance.diagonal(), covariance.diagonal()))
            .div(NUMBER)
            .sqrt()
        )
        assert ((values.T.cov() - covariance).abs() < 5 * error).all()
        deviation = values.mean(0) - parameter.detach().flatten()
        assert (deviation.abs() < 5 * (covariance.diagonal() / NUMBER).sqrt()).all()


def test_the_posterior_sees_each_example_with_one_draw_of_its_own():
    model, x, y = mlp(bias=False, number=7)
    head, draws = model.network[-1], randn64(3, 7, 10)
    predictor = Laplace(
        posterior_predictive(model, None), prior_precision=1.5, num_weight_samples=NUMBER
    )
    predictor.fit_features(
        Features(draws, head, Prediction(probs=head(draws).softmax(-1).mean(0), labels=y))
    )
    covariance = torch.linalg.inv(
        by_hand(head, torch.stack([draws[i % 3, i] for i in range(7)]), 1.5)[0]
    )
    error = 0.05 * covariance.max().item()
    assert_close(predictor.samples.T.cov(), covariance, rtol=0, atol=error)


def test_a_stochastic_network_is_averaged_over_its_draws_too():
    (model, guide), x = vit(KEP_SVGP, number=2), images(12)
    predictor = laplace(
        model, guide, [(x, torch.arange(12) % 3)], num_samples=3, prior_precision=0.5
    )
    torch.manual_seed(5)
    features = features_of(model, guide, x, num_samples=3)
    torch.manual_seed(5)
    result = predictor.predict(x)
    logits = torch.stack(
        [features.values @ row[:12].view(3, 4).T + row[12:] for row in predictor.samples]
    )
    probs = logits.softmax(-1).detach()
    assert (probs.mean(0)[0] - probs.mean(0)[1]).abs().max() > 1e-4
    assert_close(result.probs, probs.mean((0, 1)))
    assert_close(result.expected_entropy, torch.special.entr(probs).sum(-1).mean((0, 1)))
    assert torch.equal(
        result.energy, features.prediction.energy
    )  # the network's, whatever the weights' samples


@pytest.mark.parametrize("precision", [1e12, math.inf])
@pytest.mark.parametrize("attention", [SoftmaxAttention, KEP_SVGP])
def test_infinite_prior_precision_is_the_plain_prediction_with_the_layers_information(
    attention, precision
):
    (model, guide), x, y = vit(attention, number=2), images(12), torch.arange(12) % 3
    predictor = laplace(
        model, guide, [(x[:8], y[:8]), (x[8:], y[8:])], num_samples=4, prior_precision=precision
    )
    torch.manual_seed(5)
    plain = predict(model, guide, [(x, y)], num_samples=4)
    torch.manual_seed(5)
    result = predictor.predict([(x, y)])
    for field in ("probs", "expected_entropy", "energy", "mutual_information", "labels"):
        assert_close(getattr(result, field), getattr(plain, field), rtol=0, atol=1e-6)
    assert (plain.mutual_information.max() > 1e-5) == (attention is KEP_SVGP)


def test_the_chosen_prior_precision_maximises_the_marginal_likelihood():
    model, x, y = mlp()
    best = laplace(model, None, [(x, y)])
    values = [best.prior_precision * factor for factor in (0.1, 0.5, 0.9, 1.0, 1.1, 2.0, 10.0)]
    evidence = [
        laplace(model, None, [(x, y)], prior_precision=value).log_marginal_likelihood
        for value in values
    ]
    assert evidence[3] == max(evidence) == pytest.approx(best.log_marginal_likelihood, rel=1e-9)


@pytest.mark.parametrize("precision", [0.0, -1.0, math.nan])
def test_a_prior_precision_is_positive(precision):
    with pytest.raises(ValueError, match="positive"):
        Laplace(posterior_predictive(mlp()[0], None), prior_precision=precision)
