"""Metrics of numbers by hand and by brute force, and the calibration of predictions whose truth is
known."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from float64 import randn64, tensor64, zeros64
from metric_cases import predicted
from scipy import stats

from probattn.inference.metrics.regression import evaluate, interval, mae, nll, pit, rmse

F64, N = torch.float64, 1000


def gaussian(loc, scale):
    return predicted(dist.Normal(loc, scale).to_event(1))


def test_errors_log_score_and_intervals_of_a_mixture_by_hand():
    """Draws N(0, 1), N(2, 1) of the first example and N(5, 2²) twice of the second."""
    loc = tensor64([[[0.0], [5.0]], [[2.0], [5.0]]])
    prediction = gaussian(loc, tensor64([[[1.0], [2.0]]] * 2))
    y = tensor64([[2.0], [4.0]])
    assert rmse(prediction, y) == pytest.approx(math.sqrt((1 + 1) / 2))
    assert mae(prediction, y) == pytest.approx((1 + 1) / 2)  # both medians are the means
    densities = [(stats.norm.pdf(2) + stats.norm.pdf(0)) / 2, stats.norm.pdf(-0.5) / 2]
    assert nll(prediction, y) == pytest.approx(-sum(map(math.log, densities)) / 2)
    low, high = interval(prediction, 0.9)
    for end, level in ((low, 0.05), (high, 0.95)):
        assert stats.norm.cdf(end[0, 0]) / 2 + stats.norm.cdf(end[0, 0] - 2) / 2 == pytest.approx(
            level
        )
        assert end[1, 0].item() == pytest.approx(5 + 2 * stats.norm.ppf(level))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [1, 7, 1000])
def test_every_metric_of_gaussians_is_that_of_brute_force(n, dtype):
    rng = np.random.default_rng(n)
    loc = torch.tensor(rng.normal(100, 3, size=(1, n, 1)), dtype=dtype)
    scale = torch.tensor(rng.uniform(0.5, 2, size=(1, n, 1)), dtype=dtype)
    labels = torch.tensor(rng.normal(100, 3, size=(n, 1)), dtype=dtype)
    m, s, y = (values.double().numpy().reshape(-1) for values in (loc, scale, labels))
    z = (y - m) / s
    levels = np.arange(1, 100) / 100
    shares = np.searchsorted(np.sort(stats.norm.cdf(z)), levels, side="right") / n
    expected = {
        "rmse": np.sqrt(((y - m) ** 2).mean()),
        "mae": np.abs(y - m).mean(),
        "nll": -stats.norm.logpdf(y, m, s).mean(),
        "crps": (
            s * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
        ).mean(),
        "pit_error": np.abs(shares - levels).mean(),
    }
    for level in (0.5, 0.9):
        half = s * stats.norm.ppf((1 + level) / 2)
        expected[f"coverage_{100 * level:g}"] = (np.abs(y - m) <= half).mean()
        expected[f"width_{100 * level:g}"] = (2 * half).mean()
    scores = evaluate(gaussian(loc, scale), labels)
    assert scores.pop("nll") == pytest.approx(
        expected.pop("nll"), rel=1e-10 if dtype == torch.float64 else 1e-6
    )
    assert scores == pytest.approx(expected, rel=1e-8)


def test_the_median_and_not_the_mean_has_the_absolute_error():
    law = dist.LogNormal(zeros64(1, 3, 1), 1.0).to_event(1)
    assert mae(predicted(law), tensor64([[1.0], [2.0], [4.0]])) == pytest.approx(4 / 3, rel=0.05)


def true_and_drawn(kind):
    """A law of two components, and labels from a component chosen anew for each example: from the
    mixture itself."""
    loc = tensor64([0.0, 1.5])[:, None, None].expand(2, N, 1) + randn64(N, 1)
    law = {
        "gaussian": lambda: dist.Normal(loc, 0.7),
        "cauchy": lambda: dist.Cauchy(loc, 0.7),
        "poisson": lambda: dist.Poisson(loc.exp()),
    }[kind]().to_event(1)
    return predicted(law), law.sample()[torch.randint(2, (N,)), torch.arange(N)]


@pytest.mark.parametrize("kind", ["gaussian", "cauchy", "poisson"])
def test_the_true_law_is_calibrated(kind):
    prediction, y = true_and_drawn(kind)
    state = torch.get_rng_state()
    scores, transformed = evaluate(prediction, y), pit(prediction, y)
    assert torch.equal(transformed, pit(prediction, y))
    assert torch.equal(torch.get_rng_state(), state)  # metrics leave the generator where it is
    assert stats.kstest(transformed[:, 0], "uniform").pvalue > 0.001
    assert scores["pit_error"] < 0.8 / N**0.5
    for level in (0.5, 0.9):
        exact = level
        if kind == "poisson":
            low, high = interval(prediction, level)
            exact = (prediction.cdf(high) - prediction.cdf(low - 1)).mean().item()
            assert exact >= level
        assert (
            abs(scores[f"coverage_{100 * level:g}"] - exact) < 4 * (level * (1 - level) / N) ** 0.5
        )
    without_mean = {"rmse", "crps"} if kind == "cauchy" else set()
    assert {name for name, value in scores.items() if math.isnan(value)} == without_mean


def test_the_transform_of_counts_is_random_between_its_ends():
    prediction, y = true_and_drawn("poisson")
    transformed = pit(prediction, y)
    assert (transformed >= prediction.cdf(y - 1)).all()
    assert (transformed <= prediction.cdf(y)).all()
    assert stats.kstest(prediction.cdf(y)[:, 0], "uniform").pvalue < 1e-6  # unrandomised
