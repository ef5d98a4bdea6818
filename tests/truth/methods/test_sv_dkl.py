"""SV-DKL against quadrature, GPyTorch and its limits."""

import copy
import importlib

import numpy as np
import pytest
import torch
from fitted_methods import posterior_predictive, sv_dkl
from gpytorch import variational
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

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
    points, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(40))
    marginals, mixing = predictor.gps.marginals(z), copy.deepcopy(predictor.mixing).double()
    f = marginals.mean.double() + marginals.stddev.double() * torch.cartesian_prod(points, points)[:, None]
    values = function(mixing(f)).detach()
    return torch.tensordot(torch.kron(weights, weights) / weights.sum() ** 2, values, dims=1)


@torch.no_grad()
def test_the_gps_are_interpolated_from_the_grid_as_by_gpytorch():
    gps, z = FeatureGPs(3, grid_size=12).double().eval(), 1.9 * torch.rand(7, 3).double() - 0.95
    for parameter in gps.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    ours = gps.marginals(z)
    gps.variational_strategy.__class__ = variational.GridInterpolationVariationalStrategy
    theirs = gps.marginals(z)
    torch.testing.assert_close((ours.mean, ours.variance), (theirs.mean, theirs.variance))


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
    pair = (strategy.variational_distribution, strategy.prior_distribution)
    q, prior = (MultivariateNormal(law.mean.double(), law.covariance_matrix.double()) for law in pair)
    kl = kl_divergence(q, prior).sum()
    assert kl > 1
    loss = -quadrature(predictor, z, lambda logits: logits.log_softmax(-1))[torch.arange(60), y].sum()
    assert -sum(parts).item() == pytest.approx((loss + kl).item(), abs=0.3)


def test_far_outside_the_training_data_it_predicts_as_at_their_bounds():
    model, x, y = small()
    predictor = sv_dkl(model, None, [(x, y)], epochs=1)
    results, corners = [], torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    for distance in (1e3, 1e30):
        torch.manual_seed(1)
        results.append(predictor.predict(distance * corners).probs)
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
    plain = posterior_predictive(Supervised(head, Categorical(), num_data=50), None)
    predictor = SVDKL(plain, epochs=4, num_gp_samples=2000)
    predictor.fit_features(Features(values, head, prediction))
    scaled = predictor.scale(values)
    used = torch.stack([torch.cat(inputs)[:, 0].sub(scaled[s].mean()).abs() < 0.02 for s in range(4)])
    assert (used.sum(0) == 1).all()
    assert (used.float().mean(1) > 0.15).all()
    result = predictor.predict_features(Features(values, head, prediction))
    single = [predictor.predict_features(Features(values[[s]], head, prediction)).probs for s in range(4)]
    assert (single[0] - single[3]).abs().max() > 0.05
    torch.testing.assert_close(result.probs, torch.stack(single).mean(0), rtol=0, atol=0.04)
