"""All metrics against brute force in float64, from one example to millions, where sums in float32 lose their digits."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import sklearn.metrics
import torch
from scipy import stats

from probattn.inference import Prediction, metrics
from probattn.inference.metrics import ood, regression

MANY = 100_000
SIZES = [1, 2, 7, 1000, MANY]
KINDS = ("random", "ties", "equal", "certain", "absent", "calibrated")
CLASSES = 3


def cases(kind, n, dtype=torch.float64):
    """Probabilities ``(n, 3)`` and labels of a kind of prediction."""
    rng = np.random.default_rng(n)
    labels = rng.integers(CLASSES - (kind == "absent"), size=n)
    probs = rng.dirichlet(np.ones(CLASSES), n)
    if kind == "ties":
        probs = np.round(probs, 1)
        probs[:, 2] = 1 - probs[:, 0] - probs[:, 1]
        probs = np.abs(probs)
    elif kind == "equal":
        probs[:] = (0.5, 0.3, 0.2)
    elif kind == "certain":
        probs = np.eye(CLASSES)[rng.integers(CLASSES, size=n)]
    elif kind == "calibrated":  # confidence 0.7, of which float32 is 1e-8 less, and right in exactly 70 %
        probs[:] = (0.7, 0.2, 0.1)
        labels = (np.arange(n) >= round(0.7 * n)).astype(int)
    return torch.tensor(probs, dtype=dtype), torch.tensor(labels)


def calibration(confidence, right, *, bins=15):
    """ECE and MCE by a loop over the bins, without an example on an edge but 1."""
    edges = np.arange(bins + 1) / bins
    ece = mce = 0.0
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        inside = (confidence >= low) & ((confidence < high) | (high == 1))
        if inside.any():
            gap = abs(right[inside].mean() - confidence[inside].mean())
            ece, mce = ece + inside.mean() * gap, max(mce, gap)
    return ece, mce


def risks(confidence, right):
    """Mean of the risks at each coverage, ties at their mean error, and that of the ideal order."""
    order = np.argsort(-confidence, kind="stable")
    _, group, size = np.unique(-confidence[order], return_inverse=True, return_counts=True)
    error = np.bincount(group, weights=~right[order]) / size
    ranks = np.arange(1, len(right) + 1)
    curves = (np.cumsum(each.astype(np.longdouble)) / ranks for each in (error[group], np.sort(~right)))
    return [float(curve.mean()) for curve in curves]


def fpr95(scores, positive):
    fpr, tpr, _ = sklearn.metrics.roc_curve(positive, scores, drop_intermediate=False)
    return fpr[tpr >= 0.95].min()


def brute_force(probs, labels, tiny):
    """All metrics of probabilities in float64, as NumPy and scikit-learn compute them."""
    n, rows = len(labels), np.arange(len(labels))
    confidence, top = probs.max(1), probs.argmax(1)
    right = top == labels
    ece, mce = calibration(confidence, right)
    area, ideal = risks(confidence, right)
    ranked = 0 < right.sum() < n
    one_hot = np.eye(CLASSES)[labels]
    return {
        "accuracy": right.mean(),
        "mcc": sklearn.metrics.matthews_corrcoef(labels, top) if n > 1 else 0.0,
        "aurc": area,
        "eaurc": area - ideal,
        "auroc": sklearn.metrics.roc_auc_score(right, confidence) if ranked else math.nan,
        "aupr_success": sklearn.metrics.average_precision_score(right, confidence) if ranked else math.nan,
        "aupr_error": sklearn.metrics.average_precision_score(~right, -confidence) if ranked else math.nan,
        "fpr95": fpr95(confidence, right) if ranked else math.nan,
        "ece": ece,
        "mce": mce,
        "nll": -np.log(np.maximum(probs[rows, labels], tiny)).mean(),
        "brier": ((probs - one_hot) ** 2).sum(1).mean(),
    }


@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        *((n, torch.float64) for n in SIZES),
        *((n, torch.float32) for n in SIZES[:-1]),
        pytest.param(10**6, torch.float64, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_classification_metrics_are_those_of_brute_force(n, dtype, kind):
    probs, labels = cases(kind, n, dtype)
    exact, classes = probs.double().numpy(), labels.numpy()
    if kind == "ties" and dtype == torch.float32:
        exact = exact.clip(0, 1)
    found = metrics.evaluate(probs, labels)
    assert found == pytest.approx(brute_force(exact, classes, torch.finfo(dtype).tiny), abs=1e-10, nan_ok=True)
    below = (np.arange(CLASSES) >= classes[:, None])[:, :-1]
    squares = (exact.cumsum(1)[:, :-1] - below) ** 2
    assert metrics.rps(probs, labels) == pytest.approx(squares.sum(1).mean(), abs=1e-10)


@pytest.mark.slow
def test_classification_metrics_of_ten_million_examples_are_those_of_brute_force():
    test_classification_metrics_are_those_of_brute_force(10**7, torch.float64, "ties")


@pytest.mark.parametrize("n", [MANY, pytest.param(10**7, marks=pytest.mark.slow)])
def test_the_calibration_error_of_equal_confidences_does_not_grow_with_their_number(n):
    """One after another in float32, 10⁶ confidences of 0.7 sum to a mean that is off by 0.007."""
    probs, labels = cases("calibrated", n, torch.float32)
    gap = 0.7 - float(np.float32(0.7))
    assert metrics.ece(probs, labels) == pytest.approx(gap, abs=1e-12)
    assert metrics.mce(probs, labels) == pytest.approx(gap, abs=1e-12)


@pytest.mark.parametrize("n", [MANY, pytest.param(10**6, marks=pytest.mark.slow)])
def test_a_correlation_near_zero_keeps_its_digits(n):
    """It is a small difference of products of counts, which float32 rounds."""
    rng = np.random.default_rng(3)
    predicted, labels = rng.integers(CLASSES, size=(2, n))
    probs = torch.nn.functional.one_hot(torch.tensor(predicted), CLASSES).double()
    expected = sklearn.metrics.matthews_corrcoef(labels, predicted)
    assert abs(expected) < 0.01
    assert metrics.mcc(probs, torch.tensor(labels)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rare", [True, False])
def test_rankings_with_few_of_one_kind_keep_their_digits(rare):
    """Steps of recall of 1/n are lost beside 1 in float32."""
    rng = np.random.default_rng(4)
    positive = np.isin(np.arange(MANY), rng.choice(MANY, 5, replace=False)) == rare
    scores = np.arange(MANY) / MANY
    found = ood.detection_metrics(torch.tensor(scores[~positive]), torch.tensor(scores[positive]))
    assert found["auroc"] == pytest.approx(sklearn.metrics.roc_auc_score(positive, scores), rel=1e-12)
    assert found["aupr_out"] == pytest.approx(sklearn.metrics.average_precision_score(positive, scores), rel=1e-12)


@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("n", [2, 7, 1000, 100_000, pytest.param(10**6, marks=pytest.mark.slow)])
def test_detection_metrics_are_those_of_brute_force(n, decimals):
    rng = np.random.default_rng(n)
    inside, outside = rng.normal(size=n), rng.normal(1, 2, size=n // 2)
    if decimals is not None:
        inside, outside = inside.round(decimals), outside.round(decimals)
    scores, is_out = np.concatenate([inside, outside]), np.arange(n + n // 2) >= n
    expected = {
        "auroc": sklearn.metrics.roc_auc_score(is_out, scores),
        "aupr_in": sklearn.metrics.average_precision_score(~is_out, -scores),
        "aupr_out": sklearn.metrics.average_precision_score(is_out, scores),
        "fpr95_in": fpr95(-scores, ~is_out),
        "fpr95_out": fpr95(scores, is_out),
    }
    assert ood.detection_metrics(torch.tensor(inside), torch.tensor(outside)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [1, 2, 7, 1000, 100_000, pytest.param(10**6, marks=pytest.mark.slow)])
def test_multilabel_metrics_are_those_of_brute_force(n, dtype):
    """Of three labels, one tied in tenths, one certain, and one that is the same in all examples."""
    rng = np.random.default_rng(n)
    probs = torch.tensor(np.stack([rng.random(n).round(1), rng.integers(2, size=n), rng.random(n)], 1), dtype=dtype)
    labels = np.stack([rng.integers(2, size=n), rng.integers(2, size=n), np.ones(n, dtype=int)], 1)
    exact = probs.double().numpy()
    hits = (exact > 0.5) == labels
    likelihood = np.where(labels == 1, exact, 1 - exact).clip(np.finfo(np.float32).tiny)
    areas = [
        sklearn.metrics.roc_auc_score(truth, column)
        for column, truth in zip(exact.T, labels.T, strict=True)
        if len(set(truth)) > 1
    ]
    expected = {
        "label_accuracy": hits.mean(),
        "exact_match": hits.all(1).mean(),
        "label_nll": -np.log(likelihood).mean(),
        "label_brier": ((exact - labels) ** 2).mean(),
        "label_auroc": np.mean(areas) if areas else math.nan,
    }
    found = metrics.label_metrics(probs, torch.tensor(labels))
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-12, nan_ok=True)


def predicted(law):
    means, variances = law.mean, law.variance
    variance = variances.mean(0) + means.var(0, correction=0)
    return Prediction(mean=means.mean(0), variance=variance, components=(law,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [1, 2, 7, 1000, 20_000, pytest.param(10**6, marks=pytest.mark.slow)])
def test_regression_metrics_of_gaussians_are_those_of_brute_force(n, dtype):
    rng = np.random.default_rng(n)
    loc = torch.tensor(rng.normal(100, 3, size=(1, n, 1)), dtype=dtype)
    scale = torch.tensor(rng.uniform(0.5, 2, size=(1, n, 1)), dtype=dtype)
    labels = torch.tensor(rng.normal(100, 3, size=(n, 1)), dtype=dtype)
    m, s, y = (each.double().numpy().reshape(-1) for each in (loc, scale, labels))
    z = (y - m) / s
    transformed = np.sort(stats.norm.cdf(z))
    levels = np.arange(1, 100) / 100
    expected = {
        "rmse": np.sqrt((z**2 * s**2).mean()),
        "mae": np.abs(y - m).mean(),
        "nll": -stats.norm.logpdf(y, m, s).mean(),
        "crps": (s * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))).mean(),
        "pit_error": np.abs(np.searchsorted(transformed, levels, side="right") / n - levels).mean(),
    }
    for level in (0.5, 0.9):
        half = s * stats.norm.ppf((1 + level) / 2)
        expected[f"coverage_{100 * level:g}"] = (np.abs(y - m) <= half).mean()
        expected[f"width_{100 * level:g}"] = (2 * half).mean()
    found = regression.evaluate(predicted(dist.Normal(loc, scale).to_event(1)), labels)
    assert found.pop("nll") == pytest.approx(expected.pop("nll"), rel=1e-10 if dtype == torch.float64 else 1e-6)
    assert found == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("n", [1, 7, 2000, pytest.param(10**5, marks=pytest.mark.slow)])
def test_regression_metrics_of_counts_are_those_of_brute_force(n):
    """Up to the error of 1000 samples; the PIT of a count is uniform between P(Y < y) and P(Y ≤ y)."""
    rng = np.random.default_rng(n)
    rate = torch.tensor(rng.uniform(0.1, 20, size=(1, n, 1)))
    prediction = predicted(dist.Poisson(rate).to_event(1))
    labels = torch.tensor(rng.poisson(rate[0].numpy()), dtype=torch.float64)
    law, y = stats.poisson(rate.numpy().reshape(-1)), labels.numpy().reshape(-1)
    found = regression.evaluate(prediction, labels)
    assert found["mae"] == pytest.approx(np.abs(y - law.median()).mean(), abs=0.2)  # medians of 1000 samples
    assert found["nll"] == pytest.approx(-law.logpmf(y).mean(), rel=1e-10)
    for level in (0.5, 0.9):
        low, high = law.ppf((1 - level) / 2), law.ppf((1 + level) / 2)
        assert found[f"coverage_{100 * level:g}"] == pytest.approx(((low <= y) & (y <= high)).mean(), abs=0.05 + 1 / n)
        assert found[f"width_{100 * level:g}"] == pytest.approx((high - low).mean(), abs=0.5 + 1 / n)
    transformed = regression.pit(prediction, labels).numpy().reshape(-1)
    assert (transformed >= law.cdf(y - 1) - 0.08).all()
    assert (transformed <= law.cdf(y) + 0.08).all()
