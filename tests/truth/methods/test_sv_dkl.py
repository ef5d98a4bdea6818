"""SV-DKL against quadrature, GPyTorch and its limits."""

import copy

import numpy as np
import pytest
import torch
from fitted_methods import posterior_predictive, sv_dkl
from float64 import eye64, zeros64
from gpytorch import variational
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probattn.inference import SVDKL, Prediction
from probattn.inference.methods.features import Features
from probattn.inference.methods.sv_dkl_gps import FeatureGPs
from probattn.models import Supervised
from probattn.models.likelihoods import Categorical


def small(*, bias=True):
    """A network whose features are its two inputs, in affine disguise; 60 inputs and labels."""
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3, bias=bias))
    with torch.no_grad():
        network[0].weight.copy_(2 * torch.eye(2))
    x = torch.randn(60, 2)
    return Supervised(network, Categorical(), num_data=60), x, network(x).argmax(-1)


def quadrature(predictor, z, function):
    """E function(logits) by Gauss–Hermite quadrature over both GPs at scaled features, in
    float64."""
    points, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(40))
    marginals, mixing = predictor.gps.marginals(z), copy.deepcopy(predictor.mixing).double()
    f = (
        marginals.mean.double()
        + marginals.stddev.double() * torch.cartesian_prod(points, points)[:, None]
    )
    values = function(mixing(f)).detach()
    return torch.tensordot(torch.kron(weights, weights) / weights.sum() ** 2, values, dims=1)


def probs_of(logits):
    return logits.softmax(-1)


def entropy_of(logits):
    return torch.special.entr(logits.softmax(-1)).sum(-1)


def energy_of(logits):
    return -logits.logsumexp(-1)


def assert_average(value, predictor, inputs, function, *, number):
    """A function's average over samples, as many at each input, is within 5 standard errors."""
    means = torch.stack([quadrature(predictor, z, function) for z in inputs])
    squares = torch.stack(
        [quadrature(predictor, z, lambda logits: function(logits) ** 2) for z in inputs]
    )
    error = ((squares - means**2).mean(0) / number).sqrt()
    assert ((value - means.mean(0)).abs() < 5 * error + 1e-5).all()


@torch.no_grad()
def test_the_gps_are_interpolated_from_the_grid_as_by_gpytorch():
    gps, z = FeatureGPs(3, grid_size=12).eval(), 1.9 * torch.rand(7, 3).double() - 0.95
    for parameter in gps.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    ours = gps.marginals(z)
    gps.variational_strategy.__class__ = variational.GridInterpolationVariationalStrategy
    theirs = gps.marginals(z)
    assert_close((ours.mean, ours.variance), (theirs.mean, theirs.variance))


@pytest.mark.parametrize("bias", [True, False])
def test_before_the_first_step_the_gps_mean_is_the_pretrained_network(bias):
    model, x, y = small(bias=bias)
    predictor = sv_dkl(model, None, [(x, y)], epochs=0)
    f = predictor.gps.marginals(predictor.scale(model.network[:-1](x))).mean
    assert_close(predictor.mixing(f), model.network(x), rtol=1e-4, atol=1e-4)


def test_predictions_average_the_softmax_over_the_gps():
    model, x, y = small()
    predictor = sv_dkl(model, None, [(x, y)], epochs=1, num_gp_samples=10_000)
    new = torch.randn(5, 2)
    result, z = predictor.predict([(new, y[:5])]), predictor.scale(model.network[:-1](new))
    probs = quadrature(predictor, z, probs_of)
    assert (
        probs - predictor.mixing(predictor.gps.marginals(z).mean).softmax(-1)
    ).abs().max() > 0.03
    assert_average(result.probs, predictor, [z], probs_of, number=10_000)
    assert_average(result.expected_entropy, predictor, [z], entropy_of, number=10_000)
    assert_average(result.energy, predictor, [z], energy_of, number=10_000)
    assert torch.equal(result.labels, y[:5])


def test_the_batches_of_an_epoch_share_the_data_sets_evidence_lower_bound():
    """Their sum is Σ E log p − KL, the KL counted once, whatever the batches are."""
    model, x, y = small()
    predictor = sv_dkl(model, None, [(x, y)], epochs=1)
    z = predictor.scale(model.network[:-1](x)).detach()

    @torch.no_grad()
    def estimate():
        parts = []
        for features, labels in zip(z.split(7), y.split(7), strict=True):
            elbo = predictor.elbo(features, labels, num_data=60, num_samples=1000)
            parts.append(len(labels) * elbo)
        return sum(parts)

    estimates = torch.stack([estimate() for _ in range(40)])
    assert estimates.std() < 1
    loss = -quadrature(predictor, z, lambda logits: logits.log_softmax(-1))[
        torch.arange(60), y
    ].sum()
    error = estimates.std() / len(estimates) ** 0.5
    assert (estimates.mean() + loss + kl_of(predictor.gps)).abs() < 5 * error


def kl_of(gps):
    """KL(q(u) ‖ N(0, K + 10⁻³ I)) of all GPs on their grid, with an RBF kernel and GPyTorch's
    jitter, in float64."""
    grid = gps.variational_strategy.grid.double()
    lengthscale = gps.kernel.base_kernel.lengthscale.double()
    outputscale = gps.kernel.outputscale.double()[:, None, None]
    kernel = outputscale * (-0.5 * ((grid - grid.mT) / lengthscale).square()).exp()
    zeros = zeros64(len(grid))
    prior = MultivariateNormal(zeros, kernel + 1e-3 * eye64(len(grid)))
    parameters = gps.variational_strategy._variational_distribution
    tril = parameters.chol_variational_covar.double().tril()
    q = MultivariateNormal(parameters.variational_mean.double(), scale_tril=tril)
    return kl_divergence(q, prior).sum()


@pytest.mark.parametrize("epochs", [1, 30])
def test_the_kl_is_exact_although_the_grids_covariance_is_ill_conditioned(epochs):
    """With the same samples, objectives of 1 and of 10⁹ examples differ by the KL."""
    model, x, y = small()
    predictor = sv_dkl(model, None, [(x, y)], epochs=epochs)
    z = predictor.scale(model.network[:-1](x)).detach()
    with torch.random.fork_rng():
        few = predictor.elbo(z, y, num_data=1)
    many = predictor.elbo(z, y, num_data=10**9)
    expected = kl_of(predictor.gps)
    assert expected > 1
    assert (many - few).item() == pytest.approx(expected.item(), rel=1e-6)


def test_far_outside_the_training_data_it_predicts_as_at_their_bounds():
    model, x, y = small()
    predictor = sv_dkl(model, None, [(x, y)], epochs=1)
    results, corners = [], torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    for distance in (1e3, 1e30):
        torch.manual_seed(1)
        results.append(predictor.predict(distance * corners).probs)
    assert results[0].isfinite().all()
    assert_close(*results)


def test_predictions_of_a_stochastic_network_average_over_all_its_draws():
    head = nn.Linear(2, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0], [-1.0, -1.0]]))
    values = torch.arange(4.0)[:, None, None] + 0.01 * torch.rand(4, 50, 2)
    prediction = Prediction(probs=torch.ones(50, 3) / 3, labels=torch.arange(50) % 3)
    plain = posterior_predictive(Supervised(head, Categorical(), num_data=50), None)
    predictor = SVDKL(plain, epochs=4, num_gp_samples=2000)
    predictor.fit_features(Features(values, head, prediction))
    result = predictor.predict_features(Features(values, head, prediction))
    scaled = predictor.scale(values)
    probs = [quadrature(predictor, z, probs_of) for z in scaled]
    assert (probs[0] - probs[3]).abs().max() > 0.05
    assert_average(result.probs, predictor, scaled, probs_of, number=2000)
