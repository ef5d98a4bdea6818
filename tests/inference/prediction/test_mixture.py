"""The mixture over draws against scipy: roots of its distribution function, and integrals for its scores."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, optimize, stats
from torch.distributions.transforms import SigmoidTransform

from probattn.inference.prediction import mixture

F64 = torch.float64
DRAWS, EXAMPLES, TARGETS = 3, 2, 2
LOC = torch.tensor([[[0.0, 1.0], [5.0, -2.0]], [[1.0, 1.0], [-5.0, 0.0]], [[0.5, 3.0], [0.0, 2.0]]], dtype=F64)
SCALE = torch.tensor([[[1.0, 0.1], [0.5, 2.0]], [[1.0, 0.3], [0.7, 2.0]], [[2.0, 0.2], [3.0, 0.01]]], dtype=F64)
LEVELS = torch.tensor([0.001, 0.05, 0.5, 0.8, 0.999], dtype=F64)
CASES = {
    "normal": (dist.Normal(LOC, SCALE), lambda i: stats.norm(LOC[i], SCALE[i])),
    "student": (dist.StudentT(2.5, LOC, SCALE), lambda i: stats.t(2.5, LOC[i], SCALE[i])),
    "cauchy": (dist.Cauchy(LOC, SCALE), lambda i: stats.cauchy(LOC[i], SCALE[i])),
    "lognormal": (dist.LogNormal(LOC / 3, SCALE), lambda i: stats.lognorm(SCALE[i], scale=(LOC[i] / 3).exp())),
    "poisson": (dist.Poisson(LOC.exp()), lambda i: stats.poisson(LOC[i].exp())),
    "negative": (dist.NegativeBinomial(1.7, logits=LOC), lambda i: stats.nbinom(1.7, (-LOC[i]).sigmoid())),
}


def law(name):
    """The component, and by scalar the mixture's distribution function in scipy."""
    component, part = CASES[name]
    parts = [part(i) for i in range(DRAWS)]

    def function(example, target):
        return lambda y: sum(each.cdf(np.full((EXAMPLES, TARGETS), y))[example, target] for each in parts) / DRAWS

    return component.to_event(1), function


def scalars():
    return np.ndindex(EXAMPLES, TARGETS)


@pytest.mark.parametrize("name", CASES)
def test_the_distribution_function_is_the_mean_over_draws(name):
    component, function = law(name)
    values = torch.tensor([[[0.0, 2.0], [1.0, 7.0]], [[-2.0, 3.0], [0.0, 1.0]]], dtype=F64)
    found, below = mixture.cdf(component, values), mixture.cdf(component, values, below=True)
    assert found.shape == values.shape
    for row, (example, target) in ((r, at) for r in range(2) for at in scalars()):
        y = values[row, example, target].item()
        assert math.isclose(found[row, example, target], function(example, target)(y), rel_tol=1e-8, abs_tol=1e-12)
        left = y - 1 if name in ("poisson", "negative") else y
        assert math.isclose(below[row, example, target], function(example, target)(left), rel_tol=1e-8, abs_tol=1e-12)


@pytest.mark.parametrize("name", ["normal", "student", "cauchy", "lognormal"])
def test_quantiles_are_roots_of_the_distribution_function(name):
    component, function = law(name)
    found = mixture.quantiles(component, LEVELS)
    assert found.shape == (5, EXAMPLES, TARGETS)
    for k, level in enumerate(LEVELS.tolist()):
        for example, target in scalars():
            f = function(example, target)
            root = optimize.brentq(lambda y, f=f, p=level: f(y) - p, -1e5, 1e5, xtol=1e-12, rtol=1e-12)
            assert math.isclose(found[k, example, target], root, rel_tol=1e-6, abs_tol=1e-7)


@pytest.mark.parametrize("name", ["poisson", "negative"])
def test_quantiles_of_counts_are_the_smallest_that_reach_the_level(name):
    component, function = law(name)
    found = mixture.quantiles(component, LEVELS)
    for k, level in enumerate(LEVELS.tolist()):
        for example, target in scalars():
            y, f = found[k, example, target].item(), function(example, target)
            assert y == int(y) >= 0
            assert f(y) >= level > f(y - 1)


def test_quantiles_where_no_distribution_function_is_known_are_those_of_draws():
    law_of = dist.Beta(torch.full((DRAWS, EXAMPLES), 2.0), 5.0)  # torch has no distribution function
    levels = torch.tensor([0.1, 0.5, 0.9])
    found = mixture.quantiles(law_of, levels)
    error = 4 * np.sqrt(0.25 / mixture.NUM_SAMPLES) / stats.beta(2, 5).pdf(0.1)
    np.testing.assert_allclose(found[:, 0], stats.beta(2, 5).ppf([0.1, 0.5, 0.9]), atol=error)
    shares = mixture.cdf(law_of, found)
    torch.testing.assert_close(shares, levels.double()[:, None].expand(3, EXAMPLES), atol=0.08, rtol=0)


# --- Scores


def test_crps_of_one_gaussian_has_its_closed_form():
    """Gneiting & Raftery (2007), eq. 5: σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π]."""
    y = torch.tensor([[0.3, -2.0], [7.0, 1.0]], dtype=F64)
    loc, scale = LOC[:1], SCALE[:1]
    z = ((y - loc[0]) / scale[0]).numpy()
    expected = scale[0].numpy() * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    found = mixture.crps(dist.Normal(loc, scale).to_event(1), y)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def by_integral(f, y, lowest, highest):
    """∫ (F(t) − [y ≤ t])² dt."""
    points = {"limit": 500, "epsabs": 1e-9}
    return (
        integrate.quad(lambda t: f(t) ** 2, lowest, y, **points)[0]
        + integrate.quad(lambda t: (1 - f(t)) ** 2, y, highest, **points)[0]
    )


def test_crps_of_a_gaussian_mixture_is_the_integral_of_its_squared_error():
    component, function = law("normal")
    y = torch.tensor([[0.3, 1.5], [-1.0, 1.0]], dtype=F64)
    found = mixture.crps(component, y)
    for example, target in scalars():
        at = y[example, target].item()
        assert math.isclose(
            found[example, target], by_integral(function(example, target), at, at - 30, at + 30), rel_tol=1e-5
        )


@pytest.mark.parametrize("name", ["student", "poisson"])
def test_crps_by_draws_is_right_within_their_error(name):
    component, function = law(name)
    y = torch.tensor([[0.0, 2.0], [-1.0, 1.0]], dtype=F64).clamp(min=0)
    found = mixture.crps(component, y)
    for example, target in scalars():
        f, at = function(example, target), y[example, target].item()
        if name == "poisson":
            exact = sum((f(k) - (at <= k)) ** 2 for k in range(1000))
        else:
            exact = by_integral(f, at, at - 500, at + 500)
        assert abs(found[example, target] - exact) < 0.25 * exact


def test_the_energy_score_is_unbiased_for_few_draws_of_unequal_parts():
    """Two draws each of N(0, 1) and N(6, 2²): dependent pairs of one part must not count as those of the mixture."""
    torch.manual_seed(0)
    loc, scale = torch.tensor([0.0, 6.0], dtype=F64)[:, None], torch.tensor([1.0, 2.0], dtype=F64)[:, None]
    draws = loc + scale * torch.randn(2, 2, 200_000, dtype=F64)
    scores = mixture._sample_crps(draws, torch.full((200_000,), 1.0, dtype=F64))
    exact = mixture.crps(dist.Normal(loc, scale), torch.ones(1, dtype=F64)).item()
    assert abs(scores.mean() - exact) < 4 * scores.std() / 200_000**0.5
    biased = (draws - 1).abs().mean((0, 1)) - mixture._sum_pairwise_distances(draws.flatten(0, 1)) / 4**2 / 2
    assert abs(biased.mean() - exact) > 20 * scores.std() / 200_000**0.5


def test_a_score_without_a_mean_is_nan():
    y = torch.zeros(EXAMPLES, TARGETS)
    assert mixture.crps(dist.Cauchy(LOC, SCALE).to_event(1), y).isnan().all()
    logit_normal = dist.TransformedDistribution(dist.Normal(LOC, SCALE), [SigmoidTransform()])
    assert mixture.crps(logit_normal.to_event(1), y).isnan().all()


def test_draws_of_the_mixture_are_equally_many_of_each_part():
    component = dist.Normal(torch.tensor([0.0, 100.0, 200.0])[:, None], 1.0)
    found = mixture.sample(component, 10)
    assert found.shape == (12, 1)
    assert [(abs(found - at) < 20).sum().item() for at in (0, 100, 200)] == [4, 4, 4]
