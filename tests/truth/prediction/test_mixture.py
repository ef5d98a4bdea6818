"""The mixture over samples against SciPy: distribution functions, quantiles and scores; exact or by
samples."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from float64 import ones64, randn64, tensor64
from scipy import integrate, optimize, stats
from torch.distributions.transforms import SigmoidTransform
from torch.testing import assert_close

from probattn.inference import Prediction
from probattn.inference.prediction.mixture import NUM_SAMPLES, values

DRAWS, EXAMPLES, TARGETS = 3, 2, 2
LOC = tensor64([[[0.0, 1.0], [5.0, -2.0]], [[1.0, 1.0], [-5.0, 0.0]], [[0.5, 3.0], [0.0, 2.0]]])
SCALE = tensor64([[[1.0, 0.1], [0.5, 2.0]], [[1.0, 0.3], [0.7, 2.0]], [[2.0, 0.2], [3.0, 0.01]]])
LEVELS = tensor64([0.001, 0.05, 0.5, 0.8, 0.999])
TRIL = tensor64([[1.0, 0.0], [0.7, 0.4]])
EXACT = {
    "normal": (dist.Normal(LOC, SCALE).to_event(1), lambda i: stats.norm(LOC[i], SCALE[i])),
    "expanded": (
        dist.Normal(LOC[0], SCALE[0]).to_event(1).expand((DRAWS, EXAMPLES)),
        lambda i: stats.norm(LOC[0], SCALE[0]),
    ),
}
SAMPLED = {
    "multivariate": (
        dist.MultivariateNormal(LOC, scale_tril=TRIL),
        lambda i: stats.norm(LOC[i], (TRIL @ TRIL.T).diagonal().sqrt()),
    ),
    "cauchy": (dist.Cauchy(LOC, SCALE).to_event(1), lambda i: stats.cauchy(LOC[i], SCALE[i])),
    "uniform": (
        dist.Uniform(LOC, LOC + SCALE).to_event(1),
        lambda i: stats.uniform(LOC[i], SCALE[i]),
    ),
    "poisson": (dist.Poisson(LOC.exp()).to_event(1), lambda i: stats.poisson(LOC[i].exp())),
    "bernoulli": (
        dist.Bernoulli(logits=LOC).to_event(1),
        lambda i: stats.bernoulli(LOC[i].sigmoid()),
    ),
}
CASES = EXACT | SAMPLED
DISCRETE = ("poisson", "bernoulli")
ERROR = 4.5 * 0.5 / math.sqrt(NUM_SAMPLES)
SCALARS = list(np.ndindex(EXAMPLES, TARGETS))


def predicted(*components):
    means = [values(component, "mean").mean(0) for component in components]
    return Prediction(mean=torch.cat(means), components=components)


def law(name):
    """The component, and by scalar the mixture's distribution function in SciPy."""
    component, part = CASES[name]
    parts = [part(i) for i in range(DRAWS)]

    def function(example, target):
        return lambda y: (
            sum(p.cdf(np.full((EXAMPLES, TARGETS), y))[example, target] for p in parts) / DRAWS
        )

    return component, function


@pytest.mark.parametrize("name", CASES)
def test_the_distribution_function_is_the_mean_over_samples_also_outside_of_the_support(name):
    component, function = law(name)
    for value in (
        [[-40.0, 2.0], [1.0, 500.0]],
        [[-2.0, 3.0], [0.0, 1.0]],
        [[0.5, 0.9], [2.5, 30.0]],
    ):
        shares = predicted(component).cdf(tensor64(value))
        expected = torch.tensor(
            [[function(i, t)(value[i][t]) for t in range(TARGETS)] for i in range(EXAMPLES)]
        )
        assert_close(shares, expected, rtol=0, atol=ERROR if name in SAMPLED else 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_quantiles_are_roots_of_the_distribution_function_or_near(name):
    component, function = law(name)
    quantiles = predicted(component).quantiles(LEVELS)
    assert quantiles.shape == (5, EXAMPLES, TARGETS)
    for k, level in enumerate(LEVELS.tolist()):
        for example, target in SCALARS:
            y, f = quantiles[k, example, target].item(), function(example, target)
            if name in EXACT:
                root = optimize.brentq(
                    lambda y, f=f, p=level: f(y) - p, -1e3, 1e3, xtol=1e-13, rtol=1e-13
                )
                assert y == pytest.approx(root, rel=1e-9, abs=1e-9)
            else:
                assert f(y) >= level - ERROR
                assert f(y - 1 if name in DISCRETE else y) <= level + ERROR
                assert y == int(y) or name not in DISCRETE


def test_estimates_of_samples_are_exact_for_as_many_point_masses():
    """The smallest atom with P(Y ≤ y) ≥ level, and E|Y − y| − ½ E|Y − Y′| over all pairs."""
    atoms = randn64(NUM_SAMPLES, 1, 1)
    prediction, y = predicted(dist.Delta(atoms, event_dim=1)), tensor64([[0.3]])
    levels = [0.001, 0.25, 0.5, 0.9995]
    ranks = [math.ceil(level * NUM_SAMPLES) - 1 for level in levels]
    assert torch.equal(prediction.quantiles(levels)[:, 0, 0], atoms.flatten().sort().values[ranks])
    assert prediction.cdf(y).item() == (atoms <= 0.3).double().mean().item()
    spread = (atoms.flatten()[:, None] - atoms.flatten()).abs().mean().item()
    assert prediction.crps(y).item() == pytest.approx((atoms - y).abs().mean().item() - spread / 2)


def test_sampled_estimates_repeat_and_move_no_generator():
    prediction, state = predicted(CASES["poisson"][0]), torch.get_rng_state()
    y = ones64(EXAMPLES, TARGETS)
    for estimate in (
        lambda: prediction.quantiles([0.1, 0.9]),
        lambda: prediction.cdf(y),
        lambda: prediction.crps(y),
    ):
        assert torch.equal(estimate(), estimate())
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match="levels"):
        prediction.quantiles([0.5, 1.0])


@pytest.mark.parametrize(("name", "error"), [("normal", 1e-5), ("uniform", 0.1), ("poisson", 0.1)])
def test_the_crps_is_the_integral_of_the_squared_error_of_the_distribution_function(name, error):
    component, function = law(name)
    y = tensor64([[0.0, 2.0], [0.0, 1.0]])
    score, options = predicted(component).crps(y), {"limit": 200, "epsabs": 1e-6}
    for example, target in SCALARS:
        f, value = function(example, target), y[example, target].item()
        if name == "poisson":
            exact = sum((f(k) - (value <= k)) ** 2 for k in range(300))
        else:
            exact = integrate.quad(lambda t, f=f: f(t) ** 2, value - 30, value, **options)[0]
            exact += integrate.quad(lambda t, f=f: (1 - f(t)) ** 2, value, value + 30, **options)[0]
        assert score[example, target].item() == pytest.approx(exact, rel=error)


def test_without_a_formula_moments_and_scores_are_nan():
    logit_normal = dist.TransformedDistribution(
        dist.Normal(LOC, SCALE), [SigmoidTransform()]
    ).to_event(1)
    for component in (logit_normal, dist.Cauchy(LOC, SCALE).to_event(1)):
        mean, variance = values(component, "mean"), values(component, "variance")
        assert mean.shape == variance.shape == LOC.shape
        assert mean.isnan().all()
        assert not variance.isfinite().any()
        assert predicted(component).crps(LOC[0]).isnan().all()
