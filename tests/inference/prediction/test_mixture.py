"""The mixture over samples against scipy: distribution functions, quantiles and scores; exact or by samples."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, optimize, stats
from torch.distributions.transforms import SigmoidTransform

from probattn.inference import Prediction
from probattn.inference.prediction import mixture
from probattn.inference.prediction.mixture import (
    Mixture,
    device_of,
    fixed_seed,
    is_discrete,
    moments,
    tokens_of,
    unwrap,
)

F64 = torch.float64
DRAWS, EXAMPLES, TARGETS = 3, 2, 2
LOC = torch.tensor([[[0.0, 1.0], [5.0, -2.0]], [[1.0, 1.0], [-5.0, 0.0]], [[0.5, 3.0], [0.0, 2.0]]], dtype=F64)
SCALE = torch.tensor([[[1.0, 0.1], [0.5, 2.0]], [[1.0, 0.3], [0.7, 2.0]], [[2.0, 0.2], [3.0, 0.01]]], dtype=F64)
LEVELS = torch.tensor([0.001, 0.05, 0.5, 0.8, 0.999], dtype=F64)
TRIL = torch.tensor([[1.0, 0.0], [0.7, 0.4]], dtype=F64)
SD = (TRIL @ TRIL.T).diagonal().sqrt()
EXACT = {
    "normal": (dist.Normal(LOC, SCALE).to_event(1), lambda i: stats.norm(LOC[i], SCALE[i])),
    "masked": (
        dist.Normal(LOC, SCALE).mask(torch.ones(2, 2).bool()).to_event(1),
        lambda i: stats.norm(LOC[i], SCALE[i]),
    ),
    "expanded": (
        dist.ExpandedDistribution(dist.Normal(LOC[0], SCALE[0]).to_event(1), (DRAWS, EXAMPLES)),
        lambda i: stats.norm(LOC[0], SCALE[0]),
    ),
    "multivariate": (dist.MultivariateNormal(LOC, scale_tril=TRIL), lambda i: stats.norm(LOC[i], SD)),
}
SAMPLED = {
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
ERROR = 4.5 * 0.5 / math.sqrt(mixture.NUM_SAMPLES)
VALUES = torch.tensor([[[-40.0, 2.0], [1.0, 500.0]], [[-2.0, 3.0], [0.0, 1.0]], [[0.5, 0.9], [2.5, 30.0]]], dtype=F64)


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
        with fixed_seed(torch.device("cpu")):
            at, below = Mixture([component]).cdf(value), Mixture([component]).cdf(value, below=True)
        for example, target in scalars():
            y, f = value[example, target].item(), function(example, target)
            left = math.ceil(y) - 1 if is_discrete(component) else y
            assert math.isclose(at[example, target], f(y), rel_tol=0, abs_tol=error)
            assert math.isclose(below[example, target], f(left), rel_tol=0, abs_tol=error)


def test_lower_tails_of_gaussians_in_float32_are_computed_in_float64():
    tail = Mixture([dist.Normal(torch.zeros(1, 1), 1.0)]).cdf(torch.tensor([-9.0]))
    torch.testing.assert_close(tail, torch.tensor([stats.norm.cdf(-9)], dtype=F64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", EXACT)
def test_quantiles_of_normal_mixtures_are_roots_of_the_distribution_function(name):
    component, function = law(name)
    quantiles = Mixture([component]).quantiles(LEVELS)
    assert quantiles.shape == (5, EXAMPLES, TARGETS)
    for k, level in enumerate(LEVELS.tolist()):
        for example, target in scalars():
            f = function(example, target)
            root = optimize.brentq(lambda y, f=f, p=level: f(y) - p, -1e3, 1e3, xtol=1e-13, rtol=1e-13)
            assert math.isclose(quantiles[k, example, target], root, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("name", SAMPLED)
def test_other_quantiles_reach_their_level_up_to_the_error_of_samples(name):
    component, function = law(name)
    with fixed_seed(torch.device("cpu")):
        quantiles = Mixture([component]).quantiles(LEVELS)
    for k, level in enumerate(LEVELS.tolist()):
        for example, target in scalars():
            y, f = quantiles[k, example, target].item(), function(example, target)
            assert f(y) >= level - ERROR
            assert f(y - 1 if is_discrete(component) else y) <= level + ERROR
            assert y == int(y) or not is_discrete(component)


def test_a_prediction_of_counts_gives_the_same_estimates_twice_and_moves_no_generator():
    component, _ = CASES["poisson"]
    prediction, state = Prediction(mean=component.mean.mean(0), components=(component,)), torch.get_rng_state()
    for estimate in (
        lambda: prediction.quantiles([0.1, 0.9]),
        lambda: prediction.cdf(VALUES[2].floor()),
        lambda: prediction.sample(5),
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
    score = Mixture([dist.Normal(LOC[:1], SCALE[:1]).to_event(1)]).crps(y)
    np.testing.assert_allclose(score, expected, rtol=1e-10)


@pytest.mark.parametrize(("name", "error"), [("normal", 1e-5), ("student", 0.1), ("poisson", 0.1)])
def test_crps_is_the_integral_of_the_squared_error_of_the_distribution_function(name, error):
    component, function = law(name)
    y = torch.tensor([[0.0, 2.0], [-1.0, 1.0]], dtype=F64).clamp(min=0)
    with fixed_seed(torch.device("cpu")):
        score = Mixture([component]).crps(y)
    for example, target in scalars():
        f, at = function(example, target), y[example, target].item()
        if name == "poisson":
            exact = sum((f(k) - (at <= k)) ** 2 for k in range(1000))
        else:
            exact = by_integral(f, at, at - (30 if name == "normal" else 500), at + (30 if name == "normal" else 500))
        assert math.isclose(score[example, target], exact, rel_tol=error)


def test_the_score_by_samples_is_unbiased_for_few_samples_of_unequal_parts(monkeypatch):
    """Samples of one part are dependent: they must not count as pairs of the mixture."""
    torch.manual_seed(0)
    monkeypatch.setattr(mixture, "NUM_SAMPLES", 4)
    loc, scale = torch.tensor([0.0, 6.0], dtype=F64)[:, None], torch.tensor([1.0, 2.0], dtype=F64)[:, None]
    exact = Mixture([dist.Normal(loc, scale)]).crps(torch.tensor([2.0], dtype=F64))
    many = dist.Normal(loc.expand(2, 100_000), scale.expand(2, 100_000))
    monkeypatch.setattr(Mixture, "normal_parameters", lambda self: None)
    scores = Mixture([many]).crps(torch.full((100_000,), 2.0, dtype=F64))
    assert abs(scores.mean() - exact) < 4.5 * scores.std() / 100_000**0.5


def test_a_law_without_a_mean_has_no_score():
    component = dist.Cauchy(LOC, SCALE).to_event(1)
    prediction = Prediction(mean=moments(component)[0].mean(0), components=(component,))
    assert prediction.crps(LOC[0]).isnan().all()


# --- Wrappers and moments


def test_moments_that_have_no_formula_are_nan():
    logit_normal = dist.TransformedDistribution(dist.Normal(LOC, SCALE), [SigmoidTransform()])
    for distribution in (logit_normal.to_event(1), dist.Cauchy(LOC, SCALE).to_event(1)):
        mean, variance = moments(distribution)
        assert mean.shape == variance.shape == LOC.shape
        assert mean.isnan().all()
        assert not variance.isfinite().any()


def test_what_lies_inside_of_wrappers():
    inner = dist.Normal(torch.zeros(1, 2, 3), 1.0)
    masked = inner.to_event(1).mask(torch.tensor([[True, False]]))
    assert unwrap(masked.to_event(1)) is inner
    assert tokens_of(masked.to_event(1)) is masked.base_dist
    assert tokens_of(inner.to_event(1)) is None
    assert device_of(masked.to_event(1)) == torch.device("cpu")
    assert device_of(dist.Normal(torch.zeros(2, device="meta"), 1.0, validate_args=False).to_event(1)).type == "meta"


# --- Selected examples, of laws in several chunks


@pytest.mark.parametrize("rows", [[4, 0, 3], [1, 1, 3, 1, 0], list(range(5)), []])
@pytest.mark.parametrize("name", CASES)
def test_rows_have_the_values_of_the_same_examples_in_the_whole(name, rows):
    component, _ = CASES[name]
    laws = [component, component, component.expand((DRAWS, EXAMPLES))]
    whole, y = Mixture(laws), VALUES.abs().floor().clamp(max=1).repeat(2, 1, 1).flatten(0, 1)[:6]
    y = y if name not in ("cauchy", "gamma", "lognormal", "uniform") else y.abs() + 0.5
    chosen = Mixture(laws, torch.tensor(rows, dtype=torch.long))
    if name != "uniform":
        torch.testing.assert_close(chosen.log_prob(y[rows]), whole.log_prob(y)[rows], check_dtype=False)
    if name in EXACT:
        torch.testing.assert_close(chosen.cdf(y[rows]), whole.cdf(y)[rows])
        torch.testing.assert_close(chosen.crps(y[rows]), whole.crps(y)[rows])
        torch.testing.assert_close(chosen.quantiles(LEVELS), whole.quantiles(LEVELS)[:, rows])
    assert chosen.sample(7).shape == (9, len(rows), TARGETS)


def test_an_example_has_the_densities_of_several_labels():
    y = torch.randn(3, 2, dtype=F64)
    law = dist.MultivariateNormal(LOC, scale_tril=TRIL)
    values = Mixture([law], torch.tensor([1, 0, 1])).log_prob(y)
    expected = [
        law.log_prob(label)[:, row].logsumexp(0) - math.log(DRAWS) for row, label in zip([1, 0, 1], y, strict=True)
    ]
    torch.testing.assert_close(values, torch.stack(expected))


def test_real_tokens_of_a_multivariate_law():
    """Two targets that belong together: log densities are joint, moments are each one's."""
    loc = torch.randn(3, 2, 4, 2, dtype=F64)
    mask = torch.tensor([[True, False, True, True], [True, False, False, True]])
    tokens = Mixture([dist.MultivariateNormal(loc, scale_tril=TRIL)], torch.arange(8)[mask.flatten()])
    y, expected = torch.randn(5, 2, dtype=F64), Mixture([dist.MultivariateNormal(loc[:, mask], scale_tril=TRIL)])
    for one, other in (
        (tokens.log_prob(y), expected.log_prob(y)),
        (tokens.cdf(y), expected.cdf(y)),
        (tokens.quantiles(LEVELS), expected.quantiles(LEVELS)),
    ):
        torch.testing.assert_close(one, other)
