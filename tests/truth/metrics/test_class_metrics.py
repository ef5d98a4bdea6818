"""Metrics of classes by brute force in float64, and by what defines them."""

import math
from itertools import permutations, product

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_cases import detection, predictions, random_predictions

from probattn.inference import metrics

MANY, CLASSES = 30_000, 3
KINDS = ("random", "ties", "equal", "certain", "absent", "calibrated")
DETECTION = ("auroc", "aupr_success", "aupr_error", "fpr95")


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
    elif (
        kind == "calibrated"
    ):  # confidence 0.7, of which float32 is 1e-8 less, and right in exactly 70 %
        probs[:] = (0.7, 0.2, 0.1)
        labels = (np.arange(n) >= round(0.7 * n)).astype(int)
    return torch.tensor(probs, dtype=dtype), torch.tensor(labels)


def calibration(index, gaps, *, bins=15):
    """ECE and MCE of examples in these bins, from right minus confidence."""
    sums, counts = (np.bincount(index, weights, minlength=bins) for weights in (gaps, None))
    return {"ece": np.abs(sums).sum() / len(gaps), "mce": np.abs(sums / counts.clip(1)).max()}


def risks(confidence, right):
    """Mean of the risks at each coverage, ties at their mean error, and that of the ideal order."""
    order = np.argsort(-confidence, kind="stable")
    _, group, size = np.unique(-confidence[order], return_inverse=True, return_counts=True)
    error = np.bincount(group, weights=~right[order]) / size
    ranks = np.arange(1, len(right) + 1)
    return [
        float((np.cumsum(errors.astype(np.longdouble)) / ranks).mean())
        for errors in (error[group], np.sort(~right))
    ]


def brute_force(probs, labels, tiny):
    """All metrics of probabilities in float64, by their definitions."""
    confidence, top = probs.max(1), probs.argmax(1)
    right = top == labels
    area, ideal = risks(confidence, right)
    success = error = (math.nan,) * 3
    if 0 < right.sum() < len(right):
        success, error = detection(right, confidence), detection(~right, -confidence)
    index = np.searchsorted(np.arange(15) / 15, confidence, side="right") - 1
    return calibration(index, right - confidence) | {
        **dict(zip(DETECTION, (*success[:2], error[1], success[2]), strict=True)),
        "accuracy": right.mean(),
        "mcc": sklearn.metrics.matthews_corrcoef(labels, top) if len(labels) > 1 else 0.0,
        "aurc": area,
        "eaurc": area - ideal,
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
    expected = brute_force(
        probs.double().numpy().clip(0, 1), labels.numpy(), torch.finfo(dtype).tiny
    )
    assert metrics.evaluate(probs, labels) == pytest.approx(expected, abs=1e-10, nan_ok=True)


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
    aurc, eaurc = (
        function(*predictions(confidence, right)) for function in (metrics.aurc, metrics.eaurc)
    )
    assert aurc == pytest.approx(np.mean(areas), rel=1e-10)
    assert aurc - eaurc == pytest.approx(least, abs=1e-12)


def test_confidences_near_one_keep_their_order():
    # The two largest below 1 in float64; in float32 both round to 1, a tie.
    probs, labels = predictions([1 - 2**-53, 1 - 2**-52], [1, 0])
    assert [getattr(metrics, name)(probs, labels) for name in (*DETECTION, "eaurc")] == [
        1,
        1,
        1,
        0,
        0,
    ]


def test_the_ranked_score_is_the_crps_of_the_class_as_a_number():
    """E|Y − y| − ½ E|Y − Y′| over the classes' numbers, by a loop (Gneiting & Raftery, 2007, eq.
    21)."""
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
    """Of three labels, one tied in tenths, one certain, and one that is the same in all
    examples."""
    rng = np.random.default_rng(n)
    probs = torch.tensor(
        np.stack([rng.random(n).round(1), rng.integers(2, size=n), rng.random(n)], 1), dtype=dtype
    )
    labels = np.stack([rng.integers(2, size=n), rng.integers(2, size=n), np.ones(n, dtype=int)], 1)
    exact = probs.double().numpy()
    right = (exact > 0.5) == labels
    likelihood = np.where(labels == 1, exact, 1 - exact).clip(np.finfo(np.float32).tiny)
    columns = [
        (truth, column)
        for column, truth in zip(exact.T, labels.T, strict=True)
        if len(set(truth)) > 1
    ]
    expected = {
        "label_accuracy": right.mean(),
        "exact_match": right.all(1).mean(),
        "label_nll": -np.log(likelihood).mean(),
        "label_brier": ((exact - labels) ** 2).mean(),
        "label_auroc": np.mean([sklearn.metrics.roc_auc_score(*column) for column in columns])
        if columns
        else math.nan,
    }
    computed = metrics.label_metrics(probs, torch.tensor(labels))
    assert computed == pytest.approx(expected, rel=1e-10, abs=1e-12, nan_ok=True)


def test_rows_sum_to_one_up_to_the_rounding_of_their_dtype():
    rounded = torch.tensor([[0.5, 0.5 + 2**-8]])  # the next number of bfloat16 after 0.5
    valid = metrics.valid_probs(rounded.bfloat16())
    assert torch.equal(valid, rounded.double())
    for wrong in (rounded, torch.tensor([[0.5, 0.52]]).bfloat16()):
        with pytest.raises(ValueError, match="sum to 1"):
            metrics.valid_probs(wrong)
