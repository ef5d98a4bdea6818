"""Conformal sets and intervals by hand, by exact ranks, and by the exact law of their coverage."""

import math
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from float64 import ones64, randn64, tensor64, zeros64
from metric_cases import predicted, random_predictions
from scipy import stats
from torch.testing import assert_close

from probattn.inference import FewExamplesWarning, Prediction
from probattn.inference.decisions.conformal import APS, CQR, LAC, RAPS, ByClass, Normalised

TRIALS, SIZE, NEW = 250, 60, 100
"""Random calibration sets of SIZE examples, each with NEW others."""


def lac(probs, labels, *, alpha):
    return LAC(alpha=alpha).fit_prediction(Prediction(probs=probs, labels=labels))


def intervals(method, prediction, labels, *, alpha):
    return method(alpha=alpha).fit_prediction(replace(prediction, labels=labels))


def gaussian(loc, scale):
    """One draw of N(loc, scale²), of numbers ``(n, targets)``."""
    return predicted(dist.Normal(torch.as_tensor(loc)[None], torch.as_tensor(scale)).to_event(1))


@pytest.mark.parametrize("alpha", ["0.05", "0.1", "0.29", "0.5", "0.7"])
@pytest.mark.parametrize("n", [1, 2, 9, 18, 19, 99, 1000])
def test_the_quantile_has_the_exact_rank(n, alpha):
    """⌈(n + 1)(1 − α)⌉, where floats are off: 100 · 0.29 = 28.999…, 100 · (1 − 0.7) = 30.000…4."""
    score = np.random.default_rng(n).uniform(0.01, 0.45, n)
    probs = torch.tensor(np.stack([1 - score, score], axis=1))
    sets = lac(probs, torch.zeros(n, dtype=torch.long), alpha=float(alpha))
    rank = math.ceil((n + 1) * (1 - Fraction(alpha)))
    expected = math.inf if rank > n else np.sort(score)[rank - 1]
    assert sets.quantile.item() == pytest.approx(expected)


def test_sets_by_hand():
    probs = tensor64([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4], [0.1, 0.2, 0.7]])
    labels = torch.tensor([0, 2, 0, 2])  # scores 1 − p: 0.1, 0.7, 0.7, 0.3
    new = tensor64([[0.69, 0.31, 0.0], [0.3, 0.3, 0.4], [0.05, 0.95, 0.0], [0.35, 0.35, 0.3]])
    sets = lac(probs, labels, alpha=0.6)  # q̂ = 0.3: classes of at least 0.7
    assert sets.sets(new).tolist() == [[False] * 3, [False] * 3, [False, True, False], [False] * 3]
    expected = {"coverage": 0.25, "size": 0.25, "empty": 0.75, "singletons": 0.25}
    assert sets.evaluate(new, torch.tensor([1, 2, 1, 0])) == expected
    assert lac(probs, labels, alpha=0.01).sets(new).all()


def four_and_two():
    """Predictions of four numbers with their labels, and of two others."""
    calibration = gaussian(
        tensor64([[0.0], [1.0], [2.0], [3.0]]), tensor64([[1.0], [2.0], [0.5], [1.0]])
    )
    labels = tensor64([[0.5], [-1.0], [2.2], [6.0]])  # errors 0.5, 2, 0.2, 3; in sds 0.5, 1, 0.4, 3
    return calibration, labels, gaussian(tensor64([[10.0], [20.0]]), tensor64([[1.0], [3.0]]))


def test_normalised_intervals_by_hand():
    calibration, labels, new = four_and_two()
    calibrated = intervals(Normalised, calibration, labels, alpha=0.4)  # q̂ = 1, third of five
    assert_close(torch.cat(calibrated.intervals(new), 1), tensor64([[9, 11], [17, 23]]))
    scores = calibrated.evaluate(new, tensor64([[11.5], [17.5]]))
    assert scores == pytest.approx({"coverage": 0.5, "width": 4, "empty": 0})


@pytest.mark.parametrize(("alpha", "error", "sd"), [(0.4, 2, 2), (0.8, 0.2, 0.5)])
def test_quantile_intervals_by_hand(alpha, error, sd):
    """Widened by the error beyond the quantile z of its standard deviation: the third of five, and
    the first."""
    calibration, labels, new = four_and_two()
    calibrated = intervals(CQR, calibration, labels, alpha=alpha)
    z = stats.norm.ppf(1 - alpha / 2)
    q = error - sd * z
    expected = tensor64([[10 - z - q, 10 + z + q], [20 - 3 * z - q, 20 + 3 * z + q]])
    assert_close(torch.cat(calibrated.intervals(new), 1), expected)


def test_intervals_of_too_few_examples_are_the_whole_line():
    calibration, labels, new = four_and_two()
    low, high = intervals(CQR, calibration, labels, alpha=0.1).intervals(new)
    assert (-low).isposinf().all()
    assert high.isposinf().all()


def covered_by_sets(method):
    """Of predictions with an accuracy of about 65 %, so that more than the most probable class is
    needed."""

    def covered(rng, alpha):
        probs, labels = random_predictions(rng, SIZE + NEW)
        known = Prediction(probs=probs[:SIZE], labels=labels[:SIZE])
        sets = method(alpha=alpha).fit_prediction(known)
        return sets.evaluate(probs[SIZE:], labels[SIZE:])["coverage"]

    return covered


def covered_by_intervals(method):
    """Of a predictive that is biased and too narrow."""

    def covered(rng, alpha):
        loc, noise = rng.normal(size=(SIZE + NEW, 1)), np.exp(rng.normal(size=(SIZE + NEW, 1)))
        y = torch.as_tensor(loc + noise * rng.standard_t(2, size=loc.shape))
        known, new = (
            gaussian(0.5 * loc[part] + 1, 0.3 * noise[part])
            for part in (slice(SIZE), slice(SIZE, None))
        )
        return intervals(method, known, y[:SIZE], alpha=alpha).evaluate(new, y[SIZE:])["coverage"]

    return covered


@pytest.mark.parametrize(
    ("covered", "alpha"),
    [
        (covered_by_sets(LAC), 0.1),
        (covered_by_sets(LAC), 0.33),
        (covered_by_sets(APS), 0.1),
        (covered_by_sets(RAPS), 0.1),
        (covered_by_intervals(Normalised), 0.1),
        (covered_by_intervals(CQR), 0.1),
    ],
)
def test_coverage_follows_its_exact_law_for_any_prediction(covered, alpha):
    """Given n scores without ties, coverage ~ Beta(l, n + 1 − l)."""
    rng, rank = np.random.default_rng(7), math.ceil(round((SIZE + 1) * (1 - alpha), 9))
    law = stats.betabinom(NEW, rank, SIZE + 1 - rank)
    counts = np.array([round(NEW * covered(rng, alpha)) for _ in range(TRIALS)])
    assert abs(counts.mean() - law.mean()) < 4 * law.std() / math.sqrt(TRIALS)
    edges = [-1, *law.ppf([0.2, 0.4, 0.6, 0.8]), NEW]
    frequencies, _ = np.histogram(counts, bins=np.array(edges) + 0.5)
    assert stats.chisquare(frequencies, TRIALS * np.diff(law.cdf(edges))).pvalue > 1e-3


def mass_above(row, *, penalty, free):
    """Scores of one example by definition: classes one after the other."""
    scores = [0.0] * len(row)
    ranked = sorted(range(len(row)), key=lambda label: (-row[label], label))
    mass = 0.0
    for rank, label in enumerate(ranked, start=1):
        scores[label] = mass + penalty * max(0, rank - free)
        mass += row[label]
    return scores


@pytest.mark.parametrize(
    ("method", "penalty", "free"),
    [
        (APS(alpha=0.2), 0.0, 0),
        (RAPS(alpha=0.2, penalty=0.0), 0.0, 0),
        (RAPS(alpha=0.2), 0.1, 1),
        (RAPS(alpha=0.2, penalty=0.03, free=3), 0.03, 3),
        (RAPS(alpha=0.2, penalty=0.5, free=0), 0.5, 0),
    ],
)
def test_adaptive_sets_are_those_of_the_definition(method, penalty, free):
    probs, labels = random_predictions(3, n=300, classes=7)
    ties = tensor64([[0.2, 0.3, 0.0, 0.3, 0.2, 0.0, 0.0], [1 / 7] * 7])
    probs = torch.cat([probs, ties])
    labels = torch.cat([labels, torch.tensor([3, 5])])
    known, new = slice(0, None, 2), slice(1, None, 2)
    sets = method.fit_prediction(Prediction(probs=probs[known], labels=labels[known]))
    of_labels = []
    for row, label in zip(probs[known].tolist(), labels[known].tolist(), strict=True):
        of_labels.append(mass_above(row, penalty=penalty, free=free)[label])
    quantile = sorted(of_labels)[math.ceil(0.8 * (len(of_labels) + 1)) - 1]
    assert sets.quantile.item() == pytest.approx(quantile)
    for row, members in zip(probs[new].tolist(), sets.sets(probs[new]).tolist(), strict=True):
        scores = np.array(mass_above(row, penalty=penalty, free=free))
        decided = abs(scores - quantile) > 1e-9  # by more than rounding
        assert (np.array(members) == (scores <= quantile))[decided].all()


@pytest.mark.parametrize("method", [APS, RAPS])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_adaptive_sets_always_hold_the_most_probable_class(method, alpha):
    probs, labels = random_predictions(4)
    sets = method(alpha=alpha).fit_prediction(Prediction(probs=probs, labels=labels))
    assert sets.sets(probs).gather(1, probs.argmax(1, keepdim=True)).all()


def test_sets_by_class_cover_each_class_by_its_own_quantile():
    labels = torch.arange(3).repeat_interleave(torch.tensor([400, 400, 5]))
    strength = torch.tensor([3.0, 0.75, 1.5])  # the classes differ in how easy they are
    probs = (randn64(805, 3) + torch.eye(3)[labels] * strength).softmax(1)
    prediction = Prediction(probs=probs, labels=labels)
    sets = ByClass(alpha=0.2).fit_prediction(prediction)
    for label, rank in (
        (0, 321),
        (1, 321),
        (2, 5),
    ):  # ⌈(n + 1) 0.8⌉-th smallest score of the class, by hand
        scores = sorted((1 - probs[labels == label, label]).tolist())
        assert sets.quantile[label].item() == scores[rank - 1]
    assert torch.equal(sets.sets(probs), 1 - probs <= sets.quantile)
    few = ByClass(alpha=0.1).fit_prediction(prediction)
    assert few.quantile[2] == math.inf
    assert few.sets(probs)[:, 2].all()


def test_counts_and_what_has_no_mean_are_calibrated_by_their_quantiles():
    rng = np.random.default_rng(2)
    y = torch.as_tensor(rng.standard_cauchy(size=(2000, 1)))
    prediction = predicted(dist.Cauchy(zeros64(1, 1000, 1), 0.1).to_event(1))
    calibrated = intervals(CQR, prediction, y[:1000], alpha=0.2)
    assert abs(calibrated.evaluate(prediction, y[1000:])["coverage"] - 0.8) < 0.06
    assert intervals(Normalised, prediction, y[:1000], alpha=0.2).quantile.isnan()
    counts = torch.as_tensor(rng.poisson(9.0, size=(400, 1)))
    prediction = predicted(dist.Poisson(torch.full((1, 400, 1), 3.0)).to_event(1))
    assert (
        intervals(CQR, prediction, counts, alpha=0.1).evaluate(prediction, counts)["coverage"]
        >= 0.9
    )


def test_few_calibration_examples_are_told_with_the_coverage_that_they_may_give():
    """Coverage given 30 examples is Beta(28, 3), whose 5 % quantile is 0.81."""
    probs = torch.distributions.Dirichlet(ones64(4)).sample((400,))
    labels = probs.multinomial(1)[:, 0]
    with pytest.warns(FewExamplesWarning, match=f"{stats.beta(28, 3).ppf(0.05):.2f}"):
        lac(probs[:30], labels[:30], alpha=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lac(probs, labels, alpha=0.1)


def test_sets_that_hold_every_class_for_want_of_examples_are_told_with_their_classes():
    probs = torch.eye(3, dtype=torch.float64)[[0] * 9 + [1] * 8]
    prediction = Prediction(probs=probs, labels=probs.argmax(1))
    with pytest.warns(FewExamplesWarning, match=r"\[1, 2\].* 9 "):
        ByClass(alpha=0.1).fit_prediction(prediction)
    with pytest.warns(FewExamplesWarning, match="nothing: .* 9 "):
        sets = LAC(alpha=0.1).fit_prediction(prediction[:8])
    assert sets.sets(probs).all()


@pytest.mark.parametrize("method", [Normalised, CQR])
def test_what_cannot_be_calibrated_is_an_error(method):
    prediction = gaussian(np.zeros((4, 1)), 1.0)
    with pytest.raises(ValueError, match="labels"):
        intervals(method, prediction, torch.zeros(4), alpha=0.1)
    with pytest.raises(ValueError, match="numbers"):
        intervals(method, Prediction(probs=torch.full((2, 2), 0.5)), torch.zeros(2), alpha=0.1)
    with pytest.raises(RuntimeError):  # of other targets
        intervals(method, prediction, torch.zeros(4, 1), alpha=0.4).intervals(
            gaussian(np.zeros((4, 3)), 1.0)
        )
