"""Metrics of numbers by hand, and the calibration of predictions whose truth is known."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

from probattn.inference import Prediction
from probattn.inference.metrics import regression
from probattn.inference.metrics.regression import (
    crps,
    evaluate,
    interval,
    mae,
    nll,
    pit,
    pit_error,
    rmse,
)

F64 = torch.float64


def predicted(law):
    """The prediction of a component with batch shape ``(S, n)``."""
    means, variances = law.mean, law.variance
    variance = variances.mean(0) + means.var(0, correction=0)
    return Prediction(mean=means.mean(0), variance=variance, components=(law,))


def gaussian(loc, scale):
    return predicted(dist.Normal(loc, scale).to_event(1))


def two_draws():
    """Two examples of one target: draws N(0, 1), N(2, 1) of the first and N(5, 2²) twice of the second."""
    loc = torch.tensor([[[0.0], [5.0]], [[2.0], [5.0]]], dtype=F64)
    return gaussian(loc, torch.tensor([[[1.0], [2.0]]] * 2, dtype=F64)), torch.tensor([[2.0], [4.0]], dtype=F64)


def test_errors_and_log_score_by_hand():
    prediction, y = two_draws()
    assert math.isclose(rmse(prediction, y), math.sqrt((1 + 1) / 2))
    assert math.isclose(mae(prediction, y), (1 + 1) / 2, rel_tol=1e-8)  # both medians are the means
    densities = [(stats.norm.pdf(2) + stats.norm.pdf(0)) / 2, stats.norm.pdf(-0.5) / 2]
    assert math.isclose(nll(prediction, y), -sum(map(math.log, densities)) / 2, rel_tol=1e-9)


def test_intervals_by_hand():
    prediction, y = two_draws()
    low, high = interval(prediction, 0.9)
    for end, level in ((low, 0.05), (high, 0.95)):
        assert math.isclose(stats.norm.cdf(end[0, 0]) / 2 + stats.norm.cdf(end[0, 0] - 2) / 2, level, rel_tol=1e-7)
        assert math.isclose(end[1, 0], 5 + 2 * stats.norm.ppf(level), rel_tol=1e-7)
    values = evaluate(prediction, y)
    assert math.isclose(values["width_90"], (high - low).mean())
    assert values["coverage_90"] == 1


def test_the_median_and_not_the_mean_has_the_absolute_error():
    law = dist.LogNormal(torch.zeros(1, 3, 1, dtype=F64), 1.0).to_event(1)
    y = torch.tensor([[1.0], [2.0], [4.0]], dtype=F64)
    assert math.isclose(mae(predicted(law), y), (0 + 1 + 3) / 3, rel_tol=0.05)


def test_evaluate_is_each_metric():
    prediction, y = two_draws()
    expected = {"rmse": rmse, "mae": mae, "nll": nll, "crps": crps, "pit_error": pit_error}
    found = evaluate(prediction, y)
    assert list(found) == [*expected, "coverage_50", "width_50", "coverage_90", "width_90"]
    for name, function in expected.items():
        assert found[name] == function(prediction, y)


# --- Calibration, where the truth is known

N = 4000


def true_and_drawn(kind):
    """A law of two components, and labels from a component chosen anew for each example: from the mixture itself."""
    torch.manual_seed(0)
    loc = torch.tensor([0.0, 1.5], dtype=F64)[:, None, None].expand(2, N, 1) + torch.randn(N, 1, dtype=F64)
    law = {
        "gaussian": lambda: dist.Normal(loc, 0.7),
        "student": lambda: dist.StudentT(2.5, loc, 0.7),
        "cauchy": lambda: dist.Cauchy(loc, 0.7),
        "poisson": lambda: dist.Poisson(loc.exp()),
        "negative": lambda: dist.NegativeBinomial(1.7, logits=loc),
    }[kind]().to_event(1)
    return predicted(law), law.sample()[torch.randint(2, (N,)), torch.arange(N)]


KINDS = ["gaussian", "student", "cauchy", "poisson", "negative"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_true_law_is_calibrated(kind):
    prediction, y = true_and_drawn(kind)
    assert stats.kstest(pit(prediction, y)[:, 0], "uniform").pvalue > 0.001
    found = evaluate(prediction, y)
    assert found["pit_error"] < 0.8 / N**0.5
    for level in (0.5, 0.9):
        share, error = found[f"coverage_{100 * level:g}"], 4 * (level * (1 - level) / N) ** 0.5
        if kind in ("poisson", "negative"):
            low, high = interval(prediction, level)
            exact = (prediction.cdf(high) - prediction.cdf(low - 1)).mean().item()
            assert exact >= level
            assert abs(share - exact) < error
        else:
            assert abs(share - level) < error


def test_a_law_that_is_too_narrow_or_biased_has_the_error_that_follows():
    """Labels N(0, 1) under N(0, ½²): the PIT has the distribution function Φ(½ Φ⁻¹(p))."""
    y = torch.as_tensor(np.random.default_rng(0).normal(size=(20_000, 1)))
    grid = np.arange(1, 100) / 100
    for loc, scale in ((0.0, 0.5), (1.0, 1.0)):
        prediction = gaussian(torch.full((1, 20_000, 1), loc, dtype=F64), scale)
        exact = np.abs(stats.norm.cdf(loc + scale * stats.norm.ppf(grid)) - grid).mean()
        assert abs(pit_error(prediction, y) - exact) < 0.005
        share = 2 * stats.norm.cdf(scale * stats.norm.ppf(0.95)) - 1 if not loc else None
        assert share is None or abs(evaluate(prediction, y)["coverage_90"] - share) < 0.015


def test_the_pit_of_counts_is_random_between_its_ends_and_repeatable():
    prediction, y = true_and_drawn("poisson")
    first = pit(prediction, y)
    assert torch.equal(first, pit(prediction, y))
    assert (first >= prediction.cdf(y - 1)).all()
    assert (first <= prediction.cdf(y)).all()
    unrandomised = stats.kstest(prediction.cdf(y)[:, 0], "uniform")
    assert unrandomised.pvalue < 1e-6


def test_scores_are_best_for_the_truth():
    for kind in ("gaussian", "poisson"):
        prediction, y = true_and_drawn(kind)
        part = prediction.components[0].base_dist
        wrong = dist.Normal(part.loc, 1.4) if kind == "gaussian" else dist.Poisson(part.rate * 1.5)
        for metric in (nll, crps):
            assert metric(prediction, y) < metric(predicted(wrong.to_event(1)), y) - 0.01


def test_shares_below_quantiles():
    prediction, y = true_and_drawn("gaussian")
    levels = [0.1, 0.5, 0.9]
    expected = [(y <= prediction.quantiles([level])[0]).double().mean() for level in levels]
    torch.testing.assert_close(regression.shares_below(prediction, y, levels), torch.stack(expected))


# --- What has no mean, and what is refused


def test_without_a_mean_what_needs_none_is_there():
    prediction, y = true_and_drawn("cauchy")
    found = evaluate(prediction, y)
    assert {name for name, value in found.items() if math.isnan(value)} == {"rmse", "crps"}
    torch.testing.assert_close(prediction.median, prediction.quantiles([0.5])[0])
    assert prediction.log_prob(y).isfinite().all()


def test_what_cannot_be_scored_is_refused():
    prediction, y = two_draws()
    for wrong in (y[:1], y[:, 0], torch.zeros(2, 2)):
        with pytest.raises(ValueError, match=r"labels must be finite, of shape \(2, 1\)"):
            rmse(prediction, wrong)
    with pytest.raises(ValueError, match="labels must be finite"):
        rmse(prediction, torch.tensor([[1.0], [math.nan]]))
    with pytest.raises(ValueError, match="prediction of numbers"):
        rmse(Prediction(probs=torch.ones(2, 1)), y)
    with pytest.raises(ValueError, match="labels must be finite"):
        rmse(Prediction(mean=torch.zeros(0, 1)), torch.zeros(0, 1))
    with pytest.raises(ValueError, match="levels must be numbers between 0 and 1"):
        prediction.quantiles([0.5, 1.0])
    with pytest.raises(ValueError, match=r"labels of shape \(2, 1\)"):
        prediction.cdf(torch.zeros(2))


def test_metrics_leave_the_generator_where_it_is():
    prediction, y = true_and_drawn("student")
    state = torch.get_rng_state()
    assert evaluate(prediction, y) == evaluate(prediction, y)
    assert torch.equal(torch.get_rng_state(), state)
