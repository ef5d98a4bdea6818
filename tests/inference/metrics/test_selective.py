"""Selective prediction and misclassification detection against hand computation, brute force and scikit-learn."""

import math
from itertools import permutations

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from metric_cases import DETECTION, LABELS, PROBS, outcomes, predictions, property_test

from probattn.inference import metrics

# Top labels 0 0 1 2 1 with confidences .95 .9 .8 .7 .6: right, wrong, right, right, wrong.


def brute_force_aurc(confidence, wrong):
    """Mean over all orders that sort confidence of the mean over k of the error rate among the first k."""
    n = len(wrong)
    sorted_orders = [
        order
        for order in permutations(range(n))
        if all(confidence[a] >= confidence[b] for a, b in zip(order, order[1:], strict=False))
    ]
    return np.mean(
        [np.mean([np.mean([wrong[i] for i in order[:k]]) for k in range(1, n + 1)]) for order in sorted_orders]
    )


# Confidences on a grid of exact binary fractions in (1/2, 1], so that ties are frequent and 1 − c is exact.


mixed_outcomes = outcomes.filter(lambda items: len({right for _, right in items}) == 2)


few_outcomes = st.lists(st.tuples(st.sampled_from([0.6, 0.7, 0.8]), st.booleans()), min_size=1, max_size=6)


def test_risk_coverage_by_hand():
    coverage, risk = metrics.risk_coverage(PROBS, LABELS)
    torch.testing.assert_close(coverage, torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0], dtype=torch.float64))
    torch.testing.assert_close(risk, torch.tensor([0, 1 / 2, 1 / 3, 1 / 4, 2 / 5], dtype=torch.float64))


def test_risk_coverage_of_ties_by_hand():
    # .9 right; then .8 right, wrong, wrong, tied: 2/3 of an error each; then .7 wrong.
    probs, labels = predictions([0.8, 0.9, 0.8, 0.8, 0.7], [1, 1, 0, 0, 0])
    _, risk = metrics.risk_coverage(probs, labels)
    expected = torch.tensor([0, (2 / 3) / 2, (4 / 3) / 3, 2 / 4, 3 / 5], dtype=torch.float64)
    torch.testing.assert_close(risk, expected)


def test_aurc_and_eaurc_by_hand():
    aurc = (0 + 1 / 2 + 1 / 3 + 1 / 4 + 2 / 5) / 5
    ideal = (0 + 0 + 0 + 1 / 4 + 2 / 5) / 5
    assert metrics.aurc(PROBS, LABELS) == pytest.approx(aurc, rel=1e-12)
    assert metrics.eaurc(PROBS, LABELS) == pytest.approx(aurc - ideal, rel=1e-12)


def test_auroc_by_hand():
    # Of the pairs (right, wrong), .95 beats .9 and .6, .8 beats .6, .7 beats .6: 4 of 6.
    assert metrics.auroc(PROBS, LABELS) == pytest.approx(4 / 6, abs=1e-12)


def test_aupr_success_by_hand():
    # Right ones are met at ranks 1, 3, 4 of falling confidence: precisions 1/1, 2/3, 3/4.
    assert metrics.aupr_success(PROBS, LABELS) == pytest.approx((1 + 2 / 3 + 3 / 4) / 3, abs=1e-12)


def test_aupr_error_by_hand():
    # Wrong ones are met at ranks 1 and 4 of rising confidence: precisions 1/1, 2/4.
    assert metrics.aupr_error(PROBS, LABELS) == pytest.approx((1 + 2 / 4) / 2, abs=1e-12)


def test_fpr95_by_hand():
    # 95 % of the 3 right ones means all 3: threshold .7, which accepts .9 and not .6.
    assert metrics.fpr95(PROBS, LABELS) == 1 / 2


def test_fpr95_may_leave_five_percent_behind():
    # 19 of the 20 right ones are at .9 or above: exactly 95 %, so the one at .6 does not lower the threshold.
    right = [0.9 + 0.004 * i for i in range(19)] + [0.6]
    probs, labels = predictions([*right, 0.95, 0.8, 0.7, 0.55], [1] * 20 + [0] * 4)
    assert metrics.fpr95(probs, labels) == 1 / 4


def test_fpr95_accepts_wrong_ones_tied_with_the_threshold():
    probs, labels = predictions([0.9, 0.7, 0.7, 0.6], [1, 1, 0, 0])
    assert metrics.fpr95(probs, labels) == 1 / 2


@property_test
@given(mixed_outcomes)
def test_detection_agrees_with_scikit_learn_under_ties(items):
    confidence, right = (np.array(x) for x in zip(*items, strict=True))
    probs, labels = predictions(confidence, right)
    fpr, tpr, _ = sklearn.metrics.roc_curve(right, confidence, drop_intermediate=False)
    expected = {
        "auroc": sklearn.metrics.roc_auc_score(right, confidence),
        "aupr_success": sklearn.metrics.average_precision_score(right, confidence),
        "aupr_error": sklearn.metrics.average_precision_score(~right, -confidence),
        "fpr95": fpr[tpr >= 0.95].min(),
    }
    values = {key: getattr(metrics, key)(probs, labels) for key in DETECTION}
    assert values == pytest.approx(expected, abs=1e-12)


@property_test
@given(few_outcomes)
def test_aurc_is_the_mean_over_all_ways_of_breaking_ties(items):
    confidence, right = zip(*items, strict=True)
    wrong = [not r for r in right]
    probs, labels = predictions(confidence, right)
    assert metrics.aurc(probs, labels) == pytest.approx(brute_force_aurc(confidence, wrong), rel=1e-10)


@property_test
@given(few_outcomes)
def test_ideal_aurc_is_the_least_over_all_orders(items):
    confidence, right = zip(*items, strict=True)
    probs, labels = predictions(confidence, right)
    ranks = range(1, len(right) + 1)
    least = min(np.mean([1 - np.mean(order[:k]) for k in ranks]) for order in set(permutations(map(int, right))))
    assert metrics.aurc(probs, labels) - metrics.eaurc(probs, labels) == pytest.approx(least, abs=1e-12)


@property_test
@given(mixed_outcomes)
def test_monotone_transform_of_confidence_keeps_what_depends_on_order(items):
    confidence, right = zip(*items, strict=True)
    before = predictions(confidence, right)
    after = predictions([0.5 + 2 * (c - 0.5) ** 2 for c in confidence], right)
    for key in (*DETECTION, "aurc", "eaurc"):
        assert getattr(metrics, key)(*after) == pytest.approx(getattr(metrics, key)(*before), abs=1e-12)


@property_test
@given(mixed_outcomes)
def test_perfect_order_is_perfect(items):
    """Right ones moved above 3/4, wrong ones below."""
    right = [r for _, r in items]
    values = metrics.evaluate(*predictions([0.5 + (c - 0.5) / 2.1 + r / 4.1 for c, r in items], right))
    assert values["eaurc"] == 0
    assert values["fpr95"] == 0
    assert [values[key] for key in ("auroc", "aupr_success", "aupr_error")] == pytest.approx([1, 1, 1])


@property_test
@given(mixed_outcomes)
def test_worst_order_is_worst(items):
    right = [r for _, r in items]
    probs, labels = predictions([0.9 - 0.2 * r for r in right], right)
    assert metrics.auroc(probs, labels) == pytest.approx(0, abs=1e-12)
    assert metrics.fpr95(probs, labels) == 1
    assert metrics.eaurc(probs, labels) > 0


@pytest.mark.parametrize(("correct", "risk"), [([1, 1, 1], 0.0), ([0, 0, 0], 1.0), ([1], 0.0), ([0], 1.0)])
def test_detection_is_undefined_when_all_are_right_or_all_wrong(correct, risk):
    values = metrics.evaluate(*predictions([0.9, 0.8, 0.7][: len(correct)], correct))
    assert all(math.isnan(values[key]) for key in DETECTION)
    assert (values["accuracy"], values["aurc"], values["eaurc"]) == (1 - risk, risk, 0)


def test_ties_everywhere_carry_no_information():
    # Each risk is the error rate; a coin tells right from wrong; accepting 95 % of the right accepts all.
    values = metrics.evaluate(*predictions([0.8] * 5, [1, 1, 1, 0, 0]))
    ideal = (0 + 0 + 0 + 1 / 4 + 2 / 5) / 5
    expected = {
        "aurc": 2 / 5,
        "eaurc": 2 / 5 - ideal,
        "auroc": 1 / 2,
        "aupr_success": 3 / 5,
        "aupr_error": 2 / 5,
        "fpr95": 1,
        "ece": 1 / 5,
        "mce": 1 / 5,
    }
    assert {key: values[key] for key in expected} == pytest.approx(expected, abs=1e-12)
