"""Conformal intervals: by hand, their exact coverage by simulation, and what cannot be calibrated."""

import math
import pickle

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from fitted_methods import intervals
from scipy import stats

from probattn.inference import Prediction, conformal

pytestmark = pytest.mark.filterwarnings("ignore::probattn.inference.FewExamplesWarning")

F64 = torch.float64
METHODS = pytest.mark.parametrize("method", [conformal.Normalised, conformal.CQR])


def predicted(law):
    means, variances = law.mean, law.variance
    variance = variances.mean(0) + means.var(0, correction=0)
    return Prediction(mean=means.mean(0), variance=variance, components=(law,))


def gaussian(loc, scale):
    """One draw of N(loc, scale²), of numbers ``(n, targets)``."""
    return predicted(dist.Normal(torch.as_tensor(loc)[None], torch.as_tensor(scale)).to_event(1))


LOC, SCALE = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([[1.0], [2.0], [0.5], [1.0]])
Y = torch.tensor([[0.5], [-1.0], [2.2], [6.0]], dtype=F64)  # errors 0.5, 2, 0.2, 3; in sds 0.5, 1, 0.4, 3


@pytest.mark.parametrize(("alpha", "rank"), [(0.1, 5), (0.2, 4), (0.4, 3), (0.6, 2), (0.8, 1)])
def test_quantiles_of_four_scores_by_hand(alpha, rank):
    z = stats.norm.ppf(1 - alpha / 2)
    scores = {
        conformal.Normalised: [0.4, 0.5, 1.0, 3.0, math.inf],
        conformal.CQR: [*sorted([0.5 - z, 2 - 2 * z, 0.2 - 0.5 * z, 3 - z]), math.inf],
    }
    for method, expected in scores.items():
        found = intervals(method, gaussian(LOC, SCALE), Y, alpha=alpha)
        assert found.quantile.shape == (1,)
        assert found.quantile.item() == pytest.approx(expected[rank - 1], rel=1e-6, abs=1e-8)


def test_intervals_by_hand():
    new = gaussian(np.array([[10.0], [20.0]]), np.array([[1.0], [3.0]]))
    ends = {
        conformal.Normalised: [(9.0, 11.0), (17.0, 23.0)],
    }
    z = stats.norm.ppf(0.8)
    q = sorted([0.5 - z, 2 - 2 * z, 0.2 - 0.5 * z, 3 - z])[2]
    ends[conformal.CQR] = [(10 - z - q, 10 + z + q), (20 - 3 * z - q, 20 + 3 * z + q)]
    for method, expected in ends.items():
        calibrated = intervals(method, gaussian(LOC, SCALE), Y, alpha=0.4)
        low, high = calibrated.intervals(new)
        torch.testing.assert_close(torch.cat([low, high], 1), torch.tensor(expected, dtype=F64), rtol=1e-7, atol=1e-7)
        result = calibrated.evaluate(new, torch.tensor([[11.5], [17.5]]))
        hits = [low <= y <= high for (low, high), y in zip(expected, (11.5, 17.5), strict=True)]
        widths = [high - low for low, high in expected]
        assert result == pytest.approx({"coverage": sum(hits) / 2, "width": sum(widths) / 2, "empty": 0.0})


def test_each_target_is_calibrated_by_itself():
    rng = np.random.default_rng(0)
    y = torch.as_tensor(rng.normal(size=(200, 2)) * [1.0, 10.0])
    both = intervals(conformal.Normalised, gaussian(np.zeros((200, 2)), 1.0), y, alpha=0.1)
    for target in range(2):
        alone = intervals(conformal.Normalised, gaussian(np.zeros((200, 1)), 1.0), y[:, target : target + 1], alpha=0.1)
        assert both.quantile[target] == alone.quantile[0]


# ---------------------------------------------------------------- the guarantee

TRIALS, SIZE, NEW = 300, 60, 100


@pytest.mark.parametrize(
    ("method", "alpha"),
    [
        (conformal.Normalised, 0.1),
        pytest.param(conformal.Normalised, 0.33, marks=pytest.mark.slow),
        (conformal.CQR, 0.1),
        pytest.param(conformal.CQR, 0.33, marks=pytest.mark.slow),
    ],
)
def test_coverage_follows_its_exact_distribution_for_any_prediction(method, alpha):
    """Given n continuous scores coverage ~ Beta(l, n + 1 − l): here the predictive is biased and too narrow."""
    rng = np.random.default_rng(7)
    shape = (TRIALS, SIZE + NEW, 1)
    loc, noise = rng.normal(size=shape), np.exp(rng.normal(size=shape))
    y = torch.as_tensor(loc + noise * rng.standard_t(2, size=shape))
    counts = []
    for trial in range(TRIALS):
        known, new = (
            gaussian(0.5 * loc[trial][part] + 1, 0.3 * noise[trial][part])
            for part in (slice(0, SIZE), slice(SIZE, None))
        )
        calibrated = intervals(method, known, y[trial, :SIZE], alpha=alpha)
        counts.append(round(NEW * calibrated.evaluate(new, y[trial, SIZE:])["coverage"]))
    rank = math.ceil(round((SIZE + 1) * (1 - alpha), 9))
    law = stats.betabinom(NEW, rank, SIZE + 1 - rank)
    assert abs(np.mean(counts) - law.mean()) < 4 * law.std() / math.sqrt(TRIALS)
    edges = [-1, *law.ppf([0.2, 0.4, 0.6, 0.8]), NEW]
    seen, _ = np.histogram(counts, bins=np.array(edges) + 0.5)
    assert stats.chisquare(seen, TRIALS * np.diff(law.cdf(edges))).pvalue > 1e-3


def test_intervals_that_follow_the_noise_cover_easy_and_hard_examples_alike():
    rng = np.random.default_rng(1)
    n = 4000
    noise = np.where(np.arange(n) % 2, 0.2, 2.0)[:, None]
    y = torch.as_tensor(noise * rng.normal(size=(n, 1)))
    half = n // 2
    known, new = (gaussian(np.zeros((half, 1)), 0.5 * noise[part]) for part in (slice(0, half), slice(half, None)))
    easy = torch.arange(half) % 2 == 1
    calibrated = intervals(conformal.Normalised, known, y[:half], alpha=0.1)
    low, high = calibrated.intervals(new)
    hit = ((low <= y[half:]) & (y[half:] <= high)).double()[:, 0]
    assert abs(hit[easy].mean() - hit[~easy].mean()) < 0.05


def test_counts_and_what_has_no_mean_are_calibrated_by_their_quantiles():
    rng = np.random.default_rng(2)
    law = dist.Cauchy(torch.zeros(1, 1000, 1, dtype=F64), 0.1)
    y = torch.as_tensor(rng.standard_cauchy(size=(2000, 1)))
    prediction = Prediction(mean=law.mean[0], variance=law.variance[0], components=(law.to_event(1),))
    calibrated = intervals(conformal.CQR, prediction, y[:1000], alpha=0.2)
    assert abs(calibrated.evaluate(prediction, y[1000:])["coverage"] - 0.8) < 0.06
    assert intervals(conformal.Normalised, prediction, y[:1000], alpha=0.2).quantile.isnan()
    counts = torch.as_tensor(rng.poisson(9.0, size=(400, 1)))
    prediction = predicted(dist.Poisson(torch.full((1, 400, 1), 3.0)).to_event(1))
    assert intervals(conformal.CQR, prediction, counts, alpha=0.1).evaluate(prediction, counts)["coverage"] >= 0.9


def test_a_predictive_that_is_far_too_wide_is_narrowed():
    prediction = gaussian(np.zeros((200, 1)), 50.0)
    y = torch.as_tensor(np.random.default_rng(3).normal(size=(200, 1)))
    calibrated = intervals(conformal.CQR, prediction, y, alpha=0.1)
    assert calibrated.quantile < 0
    assert calibrated.evaluate(prediction, y)["width"] < 5


@METHODS
def test_what_cannot_be_calibrated_is_refused(method):
    with pytest.raises(ValueError, match=r"labels must be finite, of shape \(4, 1\)"):
        intervals(method, gaussian(LOC, SCALE), Y[:, 0], alpha=0.1)
    with pytest.raises(ValueError, match="prediction of numbers"):
        intervals(method, Prediction(probs=torch.full((2, 2), 0.5)), torch.zeros(2), alpha=0.1)


@METHODS
def test_calibrated_intervals_can_be_stored(method):
    calibrated = intervals(method, gaussian(LOC, SCALE), Y, alpha=0.4)
    new = gaussian(LOC + 1, SCALE)
    for found, expected in zip(
        pickle.loads(pickle.dumps(calibrated)).intervals(new), calibrated.intervals(new), strict=True
    ):
        assert torch.equal(found, expected)


@METHODS
def test_intervals_are_refused_for_other_targets(method):
    calibrated = intervals(method, gaussian(LOC, SCALE), Y, alpha=0.4)
    three = gaussian(np.zeros((4, 3)), 1.0)
    for use in (calibrated.intervals, lambda prediction: calibrated.evaluate(prediction, prediction.mean)):
        with pytest.raises(RuntimeError, match="invalid for input"):
            use(three)
