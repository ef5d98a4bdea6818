"""Metrics of classes by hand, by brute force in float64, against torchmetrics, and by what defines them."""

import math
from itertools import permutations, product

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_cases import LABELS, PROBS, predictions, random_predictions
from torchmetrics.functional.classification import multiclass_calibration_error

from probattn.inference import metrics

MANY, CLASSES = 30_000, 3
KINDS = ("random", "ties", "equal", "certain", "absent", "calibrated")
DETECTION = ("auroc", "aupr_success", "aupr_error", "fpr95")


def test_every_metric_by_hand():
    aurc = (0 + 1 / 2 + 1 / 3 + 1 / 4 + 2 / 5) / 5
    ideal = (0 + 0 + 0 + 1 / 4 + 2 / 5) / 5
    squares = [0.05**2 + 0.03**2 + 0.02**2, 0.9**2 + 0.04**2 + 0.94**2, 0.1**2 + 0.2**2 + 0.1**2]
    squares += [0.2**2 + 0.1**2 + 0.3**2, 0.7**2 + 0.6**2 + 0.1**2]
    expected = {
        "accuracy": 3 / 5,
        # Predicted counts 2 2 1, true counts 2 1 2: (c s − Σ p t) / √((s² − Σ p²)(s² − Σ t²)) = (15 − 8) / 16.
        "mcc": 7 / 16,
        "aurc": aurc,
        "eaurc": aurc - ideal,
        "auroc": 4 / 6,  # of the pairs (right, wrong) .95 beats .9 and .6, .8 and .7 beat .6
        "aupr_success": (1 + 2 / 3 + 3 / 4) / 3,  # right ones at ranks 1, 3, 4 of falling confidence
        "aupr_error": (1 + 2 / 4) / 2,  # wrong ones at ranks 1 and 4 of rising confidence
        "fpr95": 1 / 2,  # the threshold .7, which accepts all right ones, accepts .9
        "ece": (0.05 + 0.9 + 0.2 + 0.3 + 0.6) / 5,  # each in a bin of its own, of 15
        "mce": 0.9,
        "nll": -(math.log(0.95) + math.log(0.06) + math.log(0.8) + math.log(0.7) + math.log(0.3)) / 5,
        "brier": sum(squares) / 5,
    }
    assert metrics.evaluate(PROBS, LABELS) == pytest.approx(expected, rel=1e-12)
    # Of four bins, [.5, .75) holds .6 wrong and .7 right: |1/2 − .65|; [.75, 1] the others: |2/3 − 2.65/3|.
    assert metrics.ece(PROBS, LABELS, bins=4) == pytest.approx(0.4 * 0.15 + 0.6 * 0.65 / 3)
    assert metrics.mce(PROBS, LABELS, bins=4) == pytest.approx(0.65 / 3)


def test_the_risk_coverage_curve_of_ties_by_hand():
    # .9 right; then .8 right, wrong, wrong, tied: 2/3 of an error each; then .7 wrong.
    coverage, risk = metrics.risk_coverage(*predictions([0.8, 0.9, 0.8, 0.8, 0.7], [1, 1, 0, 0, 0]))
    assert coverage.tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert risk.tolist() == pytest.approx([0, (2 / 3) / 2, (4 / 3) / 3, 2 / 4, 3 / 5])


def cases(kind, n, dtype):
    """Probabilities ``(n, 3)`` and labels of a kind of prediction."""
    rng = np.random.default_rng(n)
    labels = rng.integers(CLASSES - (kind == "absent"), size=n)
    probs = rng.dirichlet(np.ones(CLASSES), n)
    if kind == "ties":
        probs = np.round(probs, 1)
        probs[:, 2] = np.abs(1 - probs[:, 0] - probs[:, 1])
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
    ece, mce, edges = 0.0, 0.0, np.arange(bins + 1) / bins
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
    return [
        float((np.cumsum(errors.astype(np.longdouble)) / ranks).mean()) for errors in (error[group], np.sort(~right))
    ]


def brute_force(probs, labels, tiny):
    """All metrics of probabilities in float64, as NumPy and scikit-learn compute them."""
    confidence, top = probs.max(1), probs.argmax(1)
    right = top == labels
    ece, mce = calibration(confidence, right)
    area, ideal = risks(confidence, right)
    detection = dict.fromkeys(DETECTION, math.nan)
    if 0 < right.sum() < len(right):
        fpr, tpr, _ = sklearn.metrics.roc_curve(right, confidence, drop_intermediate=False)
        detection = {
            "auroc": sklearn.metrics.roc_auc_score(right, confidence),
            "aupr_success": sklearn.metrics.average_precision_score(right, confidence),
            "aupr_error": sklearn.metrics.average_precision_score(~right, -confidence),
            "fpr95": fpr[tpr >= 0.95].min(),
        }
    return detection | {
        "accuracy": right.mean(),
        "mcc": sklearn.metrics.matthews_corrcoef(labels, top) if len(labels) > 1 else 0.0,
        "aurc": area,
        "eaurc": area - ideal,
        "ece": ece,
        "mce": mce,
        "nll": -np.log(np.maximum(probs[np.arange(len(labels)), labels], tiny)).mean(),
        "brier": ((probs - np.eye(CLASSES)[labels]) ** 2).sum(1).mean(),
    }


@pytest.mark.parametrize(
    ("kind", "n", "dtype"),
    [
        *product(KINDS, [1, 2, 7, 1000, MANY], [torch.float64]),
        *product(KINDS, [2, 7, 1000], [torch.float32]),
        ("calibrated", MANY, torch.float32),  # others have examples on edges of bins after rounding
    ],
)
def test_every_metric_is_that_of_brute_force_from_one_example_to_many(kind, n, dtype):
    probs, labels = cases(kind, n, dtype)
    expected = brute_force(probs.double().numpy().clip(0, 1), labels.numpy(), torch.finfo(dtype).tiny)
    assert metrics.evaluate(probs, labels) == pytest.approx(expected, abs=1e-10, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bins", [10, 15, 20])
def test_a_confidence_on_an_edge_is_in_the_bin_above(bins, dtype):
    """Confidences k / bins among as many classes, right and wrong in turn; 1 is in the last bin."""
    k = torch.arange(1, bins + 1)
    confidence, labels = k.to(dtype) / bins, k % 2  # label 0 is right
    probs = torch.cat([confidence[:, None], ((1 - confidence) / (bins - 1))[:, None].expand(-1, bins - 1)], dim=1)
    gaps, index = (1 - labels.double()) - confidence.double(), k.clamp(max=bins - 1)
    sums = np.bincount(index, weights=gaps, minlength=bins)
    counts = np.bincount(index, minlength=bins)
    assert metrics.ece(probs, labels, bins=bins) == pytest.approx(np.abs(sums).sum() / bins, abs=1e-12)
    assert metrics.mce(probs, labels, bins=bins) == pytest.approx(np.abs(sums / counts.clip(1)).max(), abs=1e-12)


def test_calibration_errors_are_those_of_torchmetrics_away_from_edges():
    probs, labels = random_predictions(0)
    for function, norm in ((metrics.ece, "l1"), (metrics.mce, "max")):
        expected = multiclass_calibration_error(probs, labels, probs.shape[1], n_bins=15, norm=norm)
        assert function(probs, labels) == pytest.approx(expected.item(), abs=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.sampled_from([0.6, 0.7, 0.8]), st.booleans()), min_size=1, max_size=6))
def test_aurc_is_the_mean_over_all_ways_of_breaking_ties_and_the_ideal_the_least(items):
    confidence, right = zip(*items, strict=True)
    ranks, areas, least = range(1, len(right) + 1), [], 1.0
    for order in permutations(range(len(right))):
        area = np.mean([1 - np.mean([right[i] for i in order[:k]]) for k in ranks])
        least = min(least, area)
        if all(confidence[a] >= confidence[b] for a, b in zip(order, order[1:], strict=False)):
            areas.append(area)
    aurc, eaurc = (function(*predictions(confidence, right)) for function in (metrics.aurc, metrics.eaurc))
    assert aurc == pytest.approx(np.mean(areas), rel=1e-10)
    assert aurc - eaurc == pytest.approx(least, abs=1e-12)


def test_confidences_near_one_keep_their_order():
    # The two largest below 1 in float64; in float32 both round to 1, a tie.
    probs, labels = predictions([1 - 2**-53, 1 - 2**-52], [1, 0])
    assert [getattr(metrics, name)(probs, labels) for name in (*DETECTION, "eaurc")] == [1, 1, 1, 0, 0]


def test_the_ranked_score_is_the_crps_of_the_class_as_a_number():
    """E|Y − y| − ½ E|Y − Y′| over the classes' numbers, by a loop (Gneiting & Raftery, 2007, eq. 21)."""
    probs, labels = random_predictions(3, n=50)
    expected = []
    for row, y in zip(probs.tolist(), labels.tolist(), strict=True):
        error = sum(p * abs(k - y) for k, p in enumerate(row))
        spread = sum(p * q * abs(k - j) for k, p in enumerate(row) for j, q in enumerate(row))
        expected.append(error - spread / 2)
    assert metrics.rps(probs, labels) == pytest.approx(np.mean(expected), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_metrics_of_binary_labels_are_those_of_brute_force(n, dtype):
    """Of three labels, one tied in tenths, one certain, and one that is the same in all examples."""
    rng = np.random.default_rng(n)
    probs = torch.tensor(np.stack([rng.random(n).round(1), rng.integers(2, size=n), rng.random(n)], 1), dtype=dtype)
    labels = np.stack([rng.integers(2, size=n), rng.integers(2, size=n), np.ones(n, dtype=int)], 1)
    exact = probs.double().numpy()
    right = (exact > 0.5) == labels
    likelihood = np.where(labels == 1, exact, 1 - exact).clip(np.finfo(np.float32).tiny)
    columns = [(truth, column) for column, truth in zip(exact.T, labels.T, strict=True) if len(set(truth)) > 1]
    expected = {
        "label_accuracy": right.mean(),
        "exact_match": right.all(1).mean(),
        "label_nll": -np.log(likelihood).mean(),
        "label_brier": ((exact - labels) ** 2).mean(),
        "label_auroc": np.mean([sklearn.metrics.roc_auc_score(*column) for column in columns]) if columns else math.nan,
    }
    computed = metrics.label_metrics(probs, torch.tensor(labels))
    assert computed == pytest.approx(expected, rel=1e-10, abs=1e-12, nan_ok=True)
