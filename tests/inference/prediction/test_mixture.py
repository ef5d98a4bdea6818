"""The mixture over samples against scipy: distribution functions, quantiles and scores; exact or by samples."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, optimize, stats
from torch.distributions.transforms import SigmoidTransform

from probattn.inference import Prediction
from probattn.inference.prediction.mixture import NUM_SAMPLES, device_of, innermost, token_mask, tokens_of, values
from probattn.models.likelihoods import Gaussian, PerToken

F64 = torch.float64
DRAWS, EXAMPLES, TARGETS = 3, 2, 2
LOC = torch.tensor([[[0.0, 1.0], [5.0, -2.0]], [[1.0, 1.0], [-5.0, 0.0]], [[0.5, 3.0], [0.0, 2.0]]], dtype=F64)
SCALE = torch.tensor([[[1.0, 0.1], [0.5, 2.0]], [[1.0, 0.3], [0.7, 2.0]], [[2.0, 0.2], [3.0, 0.01]]], dtype=F64)
LEVELS = torch.tensor([0.001, 0.05, 0.5, 0.8, 0.999], dtype=F64)
TRIL = torch.tensor([[1.0, 0.0], [0.7, 0.4]], dtype=F64)
SD = (TRIL @ TRIL.T).diagonal().sqrt()
EXACT = {
    "normal": (dist.Normal(LOC, SCALE).to_event(1), lambda i: stats.norm(LOC[i], SCALE[i])),
    "expanded": (
        dist.Normal(LOC[0], SCALE[0]).to_event(1).expand((DRAWS, EXAMPLES)),
        lambda i: stats.norm(LOC[0], SCALE[0]),
    ),
}
SAMPLED = {
    "multivariate": (dist.MultivariateNormal(LOC, scale_tril=TRIL), lambda i: stats.norm(LOC[i], SD)),
    "cauchy": (dist.Cauchy(LOC, SCALE).to_event(1), lambda i: stats.cauchy(LOC[i], SCALE[i])),
    "gamma": (dist.Gamma(SCALE, (-LOC).exp()).to_event(1), lambda i: stats.gamma(SCALE[i], scale=LOC[i].exp())),
    "lognormal": (
        dist.LogNormal(LOC / 3, SCALE).to_event(1),
        lambda i: stats.lognorm(SCALE[i], scale=(LOC[i] / 3).exp()),
    ),
    "uniform": (dist.Uniform(LOC, LOC + SCALE).to_event(1), lambda i: stats.uniform(LOC[i], SCALE[i])),
    "student": (dist.StudentT(2.5, LOC, SCALE).to_event(1), lambda i: stats.t(2.5, LOC[i], SCALE[i])),
    "poisson": (dist.Poisson(LOC.exp()).to_event(1), lambda i: stats.poisson(LOC[i].exp())),
    "negative": (dist.NegativeBinomial(1.7, logits=LOC).to_event(1), lambda i: stats.nbinom(1.7, (-LOC[i]).sigmoid())),
    "bernoulli": (dist.Bernoulli(logits=LOC).to_event(1), lambda i: stats.bernoulli(LOC[i].sigmoid())),
}
CASES = EXACT | SAMPLED
DISCRETE = ("poisson", "negative", "bernoulli")
ERROR = 4.5 * 0.5 / math.sqrt(NUM_SAMPLES)
VALUES = torch.tensor([[[-40.0, 2.0], [1.0, 500.0]], [[-2.0, 3.0], [0.0, 1.0]], [[0.5, 0.9], [2.5, 30.0]]], dtype=F64)


def predicted(*components):
    means = [values(component, "mean").mean(0) for component in components]
    return Prediction(mean=torch.cat(means), components=components)


def law(name):
    """The component, and by scalar the mixture's distribution function in scipy."""
    component, part = CASES[name]
    parts = [part(i) for i in range(DRAWS)]

    def function(example, target):
        return lambda y: sum(p.cdf(np.full((EXAMPLES, TARGETS), y))[example, target] for p in parts) / DRAWS

    return component, function


def scalars():
    return np.ndindex(EXAMPLES, TARGETS)


@pytest.mark.parametrize("name", CASES)
def test_the_distribution_function_is_the_mean_over_samples_also_outside_of_the_support(name):
    component, function = law(name)
    error = ERROR if name in SAMPLED else 1e-9
    for value in VALUES:
        shares = predicted(component).cdf(value)
        for example, target in scalars():
            exact = function(example, target)(value[example, target].item())
            assert math.isclose(shares[example, target], exact, rel_tol=0, abs_tol=error)


def test_lower_tails_of_gaussians_in_float32_are_computed_in_float64():
    tail = predicted(dist.Normal(torch.zeros(1, 1), 1.0)).cdf(torch.tensor([-9.0]))
    torch.testing.assert_close(tail, torch.tensor([stats.norm.cdf(-9)], dtype=F64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", EXACT)
def test_quantiles_of_normal_mixtures_are_roots_of_the_distribution_function(name):
    component, function = law(name)
    quantiles = predicted(component).quantiles(LEVELS)
    assert quantiles.shape == (5, EXAMPLES, TARGETS)
    for k, level in enumerate(LEVELS.tolist()):
        for example, target in scalars():
            f = function(example, target)
            root = optimize.brentq(lambda y, f=f, p=level: f(y) - p, -1e3, 1e3, xtol=1e-13, rtol=1e-13)
            assert math.isclose(quantiles[k, example, target], root, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("name", SAMPLED)
def test_other_quantiles_reach_their_level_up_to_the_error_of_samples(name):
    component, function = law(name)
    quantiles = predicted(component).quantiles(LEVELS)
    for k, level in enumerate(LEVELS.tolist()):
        for example, target in scalars():
            y, f = quantiles[k, example, target].item(), function(example, target)
            assert f(y) >= level - ERROR
            assert f(y - 1 if name in DISCRETE else y) <= level + ERROR
            assert y == int(y) or name not in DISCRETE


def test_a_prediction_of_counts_gives_the_same_estimates_twice_and_moves_no_generator():
    component, _ = CASES["poisson"]
    prediction, state = predicted(component), torch.get_rng_state()
    for estimate in (
        lambda: prediction.quantiles([0.1, 0.9]),
        lambda: prediction.cdf(VALUES[2].floor()),
        lambda: prediction.crps(VALUES[2].floor()),
    ):
        assert torch.equal(estimate(), estimate())
    assert torch.equal(torch.get_rng_state(), state)


# --- Scores


def by_integral(f, y, lowest, highest):
    """∫ (F(t) − [y ≤ t])² dt."""
    points = {"limit": 500, "epsabs": 1e-9}
    return (
        integrate.quad(lambda t: f(t) ** 2, lowest, y, **points)[0]
        + integrate.quad(lambda t: (1 - f(t)) ** 2, y, highest, **points)[0]
    )


def test_crps_of_one_gaussian_has_its_closed_form():
    """Gneiting & Raftery (2007), eq. 5: σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π]."""
    y = torch.tensor([[0.3, -2.0], [7.0, 1.0]], dtype=F64)
    z = ((y - LOC[0]) / SCALE[0]).numpy()
    expected = SCALE[0].numpy() * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    score = predicted(dist.Normal(LOC[:1], SCALE[:1]).to_event(1)).crps(y)
    np.testing.assert_allclose(score, expected, rtol=1e-10)


@pytest.mark.parametrize(("name", "error"), [("normal", 1e-5), ("student", 0.1), ("poisson", 0.1)])
def test_crps_is_the_integral_of_the_squared_error_of_the_distribution_function(name, error):
    component, function = law(name)
    y = torch.tensor([[0.0, 2.0], [-1.0, 1.0]], dtype=F64).clamp(min=0)
    score = predicted(component).crps(y)
    for example, target in scalars():
        f, at = function(example, target), y[example, target].item()
        if name == "poisson":
            exact = sum((f(k) - (at <= k)) ** 2 for k in range(1000))
        else:
            exact = by_integral(f, at, at - (30 if name == "normal" else 500), at + (30 if name == "normal" else 500))
        assert math.isclose(score[example, target], exact, rel_tol=error)


def test_a_law_without_a_mean_has_no_score():
    component = dist.Cauchy(LOC, SCALE).to_event(1)
    assert predicted(component).crps(LOC[0]).isnan().all()


# --- Wrappers and moments


def test_moments_that_have_no_formula_are_nan():
    logit_normal = dist.TransformedDistribution(dist.Normal(LOC, SCALE), [SigmoidTransform()])
    for distribution in (logit_normal.to_event(1), dist.Cauchy(LOC, SCALE).to_event(1)):
        mean, variance = values(distribution, "mean"), values(distribution, "variance")
        assert mean.shape == variance.shape == LOC.shape
        assert mean.isnan().all()
        assert not variance.isfinite().any()


def test_what_lies_inside_of_wrappers():
    inner, mask = dist.Normal(torch.zeros(1, 2, 3), 1.0), torch.tensor([[True, False]])
    masked = inner.to_event(1).mask(mask).to_event(1)
    assert innermost(masked) is inner
    assert torch.equal(token_mask(masked), mask[0])
    assert token_mask(inner.to_event(1)) is None
    assert token_mask(inner.to_event(1).mask(mask)) is None  # of examples
    assert device_of(masked) == torch.device("cpu")
    assert device_of(dist.Normal(torch.zeros(2, device="meta"), 1.0, validate_args=False).to_event(1)).type == "meta"


# --- Chunks of examples, and tokens


@pytest.mark.parametrize("name", CASES)
def test_chunks_that_ran_one_after_another_have_the_values_of_each(name):
    component, _ = CASES[name]
    y = component.sample()[0]
    whole, part = predicted(component, component), predicted(component)
    if name != "uniform":  # whose samples have other supports
        torch.testing.assert_close(whole.log_prob(torch.cat([y, y])), part.log_prob(y).repeat(2))
    for of_both, of_one in (
        (whole.cdf(torch.cat([y, y])), part.cdf(y)),
        (whole.quantiles(LEVELS).transpose(0, 1), part.quantiles(LEVELS).transpose(0, 1)),
    ):
        assert torch.equal(of_both[:EXAMPLES], of_one)


@pytest.mark.parametrize("likelihood", [Gaussian(), lambda loc: dist.MultivariateNormal(loc, scale_tril=TRIL)])
def test_real_tokens_are_examples(likelihood):
    """Also two targets that belong together: log densities are joint, moments are each one's."""
    loc = torch.randn(3, 2, 4, 2, dtype=F64)
    mask = torch.tensor([[True, False, True, True], [True, False, False, True]])
    tokens, expected = tokens_of(PerToken(likelihood)(loc, mask)), likelihood(loc[:, mask])
    y = torch.randn(5, 2, dtype=F64)
    assert (tokens.batch_shape, tokens.event_shape) == (expected.batch_shape, expected.event_shape)
    assert tokens.sample((7,)).shape == expected.sample((7,)).shape
    torch.testing.assert_close(tokens.log_prob(y), expected.log_prob(y))
    for name in ("mean", "variance"):
        torch.testing.assert_close(values(tokens, name), values(expected, name))
