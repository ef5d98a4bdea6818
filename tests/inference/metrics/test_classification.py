"""Metrics against arithmetic done by hand, scikit-learn, brute force, and the properties that define them."""

import math
from itertools import permutations

import numpy as np
import pyro.distributions as dist
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error, multiclass_matthews_corrcoef

from probattn.inference import Prediction, metrics
from probattn.inference.metrics import multilabel, regression

FUNCTIONS = {key: getattr(metrics, "matthews_corrcoef" if key == "mcc" else key) for key in metrics.DISPLAY}
DETECTION = ("auroc", "aupr_success", "aupr_error", "fpr95")

# Top labels 0 0 1 2 1 with confidences .95 .9 .8 .7 .6: right, wrong, right, right, wrong.
PROBS = torch.tensor(
    [[0.95, 0.03, 0.02], [0.90, 0.04, 0.06], [0.1, 0.8, 0.1], [0.2, 0.1, 0.7], [0.3, 0.6, 0.1]],
    dtype=torch.float64,
)
LABELS = torch.tensor([0, 2, 1, 2, 0])


def predictions(confidence, correct):
    """Three-class probabilities, top label 0 with these confidences (> 1/2), and labels 0 (right) or 1."""
    confidence = torch.as_tensor(confidence, dtype=torch.float64)
    probs = torch.stack([confidence, 0.75 * (1 - confidence), 0.25 * (1 - confidence)], dim=1)
    return probs, 1 - torch.as_tensor(correct, dtype=torch.int64)


def renamed(probs, labels):
    """The same with other names of the classes in every other example, so that predictions are of two classes."""
    cycle = torch.arange(len(probs)) % 2
    rolled = torch.stack([row.roll(int(by)) for row, by in zip(probs, cycle, strict=True)])
    return rolled, (labels + cycle) % probs.shape[1]


def random_predictions(seed, n=400, classes=5):
    """Skilled but miscalibrated probabilities, without ties, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    logits = rng.normal(size=(n, classes)) + 1.5 * np.eye(classes)[labels]
    return torch.tensor(2 * logits).softmax(dim=1), torch.tensor(labels)


def brute_force_calibration(probs, labels, bins):
    """ECE and MCE by a loop over [left, right) bins, the last one closed."""
    confidence, top = (x.numpy() for x in probs.max(dim=1))
    correct = top == labels.numpy()
    gaps, weights = [], []
    for b in range(bins):
        inside = (confidence >= b / bins) & ((confidence < (b + 1) / bins) | (b == bins - 1))
        if inside.any():
            gaps.append(abs(correct[inside].mean() - confidence[inside].mean()))
            weights.append(inside.mean())
    return np.dot(gaps, weights), max(gaps)


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
outcomes = st.lists(st.tuples(st.integers(33, 64).map(lambda i: i / 64), st.booleans()), min_size=1, max_size=25)
mixed_outcomes = outcomes.filter(lambda items: len({right for _, right in items}) == 2)
few_outcomes = st.lists(st.tuples(st.sampled_from([0.6, 0.7, 0.8]), st.booleans()), min_size=1, max_size=6)
property_test = settings(deadline=None, max_examples=60)


# --- By hand


def test_accuracy_by_hand():
    assert metrics.accuracy(PROBS, LABELS) == 3 / 5


def test_nll_by_hand():
    expected = -(math.log(0.95) + math.log(0.06) + math.log(0.8) + math.log(0.7) + math.log(0.3)) / 5
    assert metrics.nll(PROBS, LABELS) == pytest.approx(expected, rel=1e-12)


def test_brier_by_hand():
    per_example = [
        0.05**2 + 0.03**2 + 0.02**2,
        0.90**2 + 0.04**2 + 0.94**2,
        0.1**2 + 0.2**2 + 0.1**2,
        0.2**2 + 0.1**2 + 0.3**2,
        0.7**2 + 0.6**2 + 0.1**2,
    ]
    assert metrics.brier(PROBS, LABELS) == pytest.approx(sum(per_example) / 5, rel=1e-12)


def test_brier_of_a_certain_mistake_is_two():
    assert metrics.brier(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([2])) == 2


def test_calibration_by_hand():
    # bins=4. [.5, .75): .6 wrong, .7 right, so |1/2 − .65| = .15. [.75, 1]: .8 right, .9 wrong, .95 right, so
    # |2/3 − 2.65/3| = .65/3. Weights 2/5 and 3/5.
    assert metrics.ece(PROBS, LABELS, bins=4) == pytest.approx(0.4 * 0.15 + 0.6 * 0.65 / 3, abs=1e-6)
    assert metrics.mce(PROBS, LABELS, bins=4) == pytest.approx(0.65 / 3, abs=1e-6)


def test_calibration_takes_absolute_gaps_per_bin():
    # bins=2. [0, .5): .4 right, gap .6. [.5, 1]: .9 wrong and .7 right, gap |1/2 − .8| = .3 the other way.
    probs = torch.tensor([[0.40, 0.35, 0.25], [0.9, 0.05, 0.05], [0.7, 0.2, 0.1]])
    labels = torch.tensor([0, 1, 0])
    assert metrics.ece(probs, labels, bins=2) == pytest.approx(0.6 / 3 + 0.3 * 2 / 3, abs=1e-6)
    assert metrics.mce(probs, labels, bins=2) == pytest.approx(0.6, abs=1e-6)


def test_calibration_bins_hold_their_left_edge():
    # bins=2. .5 right is binned with .75 wrong, not with .375 right: |1/2 − .625| · 2/3 + .625 / 3.
    probs = torch.tensor([[0.5, 0.25, 0.25], [0.75, 0.125, 0.125], [0.375, 0.3125, 0.3125]])
    labels = torch.tensor([0, 1, 0])
    assert metrics.ece(probs, labels, bins=2) == pytest.approx(0.125 * 2 / 3 + 0.625 / 3, abs=1e-6)


def test_calibration_defaults_to_fifteen_bins():
    # .70 wrong and .74 right lie on either side of 11/15 = .7333.
    probs, labels = predictions([0.70, 0.74], [0, 1])
    assert metrics.ece(probs, labels) == pytest.approx((0.70 + 0.26) / 2, abs=1e-6)
    assert metrics.mce(probs, labels) == pytest.approx(0.70, abs=1e-6)
    # [11/16, 12/16) = [.6875, .75) holds both.
    assert metrics.ece(probs, labels, bins=16) == pytest.approx(abs(0.5 - 0.72), abs=1e-6)


def on_edges(bins, dtype):
    """Confidences k / bins among as many classes, right and wrong in turn, and their bins."""
    k = torch.arange(1, bins + 1)
    confidence = k.to(dtype) / bins
    rest = ((1 - confidence) / max(bins - 1, 1)).unsqueeze(1).expand(-1, bins - 1)
    return torch.cat([confidence.unsqueeze(1), rest], dim=1), k % 2, k.clamp(max=bins - 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bins", [10, 15, 20])
def test_a_confidence_on_an_edge_is_in_the_bin_above(bins, dtype):
    """All of k / bins, one by one beside an example within that bin, and all at once; 1 is in the last bin."""
    probs, labels, index = on_edges(bins, dtype)
    gaps = (1 - labels.double()) - probs[:, 0].double()  # label 0 is right
    for k in range(1, bins):
        middle = torch.full((1, bins), (1 - (k + 0.5) / bins) / (bins - 1), dtype=dtype)
        middle[0, 0] = (k + 0.5) / bins
        if middle[0, 0] <= middle[0, 1]:
            continue  # not the most probable class
        pair, of_pair = torch.cat([probs[k - 1 : k], middle]), torch.tensor([labels[k - 1].item(), 0])
        expected = abs(gaps[k - 1].item() + 1 - middle[0, 0].double().item()) / 2
        assert metrics.ece(pair, of_pair, bins=bins) == pytest.approx(expected, abs=1e-12)
        assert metrics.mce(pair, of_pair, bins=bins) == pytest.approx(expected, abs=1e-12)
    sums = np.array([gaps[index == b].sum().item() for b in range(bins)])
    counts = np.bincount(index.numpy(), minlength=bins)
    assert metrics.ece(probs, labels, bins=bins) == pytest.approx(np.abs(sums).sum() / bins, abs=1e-12)
    assert metrics.mce(probs, labels, bins=bins) == pytest.approx(np.abs(sums / counts.clip(1)).max(), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_calibration_agrees_with_torchmetrics_away_from_edges(seed):
    probs, labels = random_predictions(seed)
    for function, norm in ((metrics.ece, "l1"), (metrics.mce, "max")):
        expected = multiclass_calibration_error(probs, labels, probs.shape[1], n_bins=15, norm=norm)
        assert function(probs, labels) == pytest.approx(expected.item(), abs=1e-6)


def test_certainty_shares_the_last_bin():
    # 1 wrong and .95 right are both in the last bin: |1/2 − .975|. Apart they would give (1 + .05) / 2.
    probs, labels = predictions([1.0, 0.95], [0, 1])
    assert metrics.ece(probs, labels) == pytest.approx(0.475, abs=1e-6)
    assert metrics.mce(probs, labels) == pytest.approx(0.475, abs=1e-6)


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
    assert metrics.auroc(PROBS, LABELS) == pytest.approx(4 / 6, abs=1e-6)


def test_aupr_success_by_hand():
    # Right ones are met at ranks 1, 3, 4 of falling confidence: precisions 1/1, 2/3, 3/4.
    assert metrics.aupr_success(PROBS, LABELS) == pytest.approx((1 + 2 / 3 + 3 / 4) / 3, abs=1e-6)


def test_aupr_error_by_hand():
    # Wrong ones are met at ranks 1 and 4 of rising confidence: precisions 1/1, 2/4.
    assert metrics.aupr_error(PROBS, LABELS) == pytest.approx((1 + 2 / 4) / 2, abs=1e-6)


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


def test_matthews_by_hand():
    # Predicted 0 0 1 2 1, true 0 2 1 2 0: c = 3 right of s = 5; predicted counts 2 2 1, true counts 2 1 2.
    # (c s − Σ p t) / √((s² − Σ p²)(s² − Σ t²)) = (15 − 8) / √(16 · 16).
    assert metrics.matthews_corrcoef(PROBS, LABELS) == pytest.approx(7 / 16, abs=1e-6)


# --- Against scikit-learn and brute force


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_scikit_learn(seed):
    probs, labels = random_predictions(seed)
    confidence, top = (x.numpy() for x in probs.max(dim=1))
    right = top == labels.numpy()
    one_hot = np.eye(5)[labels]
    values = metrics.evaluate(probs, labels)
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(labels, top),
        "auroc": sklearn.metrics.roc_auc_score(right, confidence),
        "aupr_success": sklearn.metrics.average_precision_score(right, confidence),
        "aupr_error": sklearn.metrics.average_precision_score(~right, -confidence),
        "nll": sklearn.metrics.log_loss(labels, probs.numpy()),
        "brier": sum(sklearn.metrics.brier_score_loss(one_hot[:, k], probs[:, k].numpy()) for k in range(5)),
    }
    assert {key: values[key] for key in expected} == pytest.approx(expected, abs=1e-6)
    assert metrics.matthews_corrcoef(probs, labels) == pytest.approx(
        sklearn.metrics.matthews_corrcoef(labels, top), abs=1e-6
    )


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("seed", range(3))
def test_calibration_agrees_with_brute_force(seed, bins):
    probs, labels = random_predictions(seed)
    ece, mce = brute_force_calibration(probs, labels, bins)
    assert metrics.ece(probs, labels, bins=bins) == pytest.approx(ece, abs=1e-12)
    assert metrics.mce(probs, labels, bins=bins) == pytest.approx(mce, abs=1e-12)


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
    assert values == pytest.approx(expected, abs=1e-6)


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


@pytest.mark.parametrize(("predicted", "true"), [([1] * 10, [1] * 8 + [0] * 2), ([0, 1, 1, 1], [1] * 4)])
def test_matthews_of_a_constant_is_zero_as_in_scikit_learn(predicted, true):
    probs = torch.nn.functional.one_hot(torch.tensor(predicted), 2).float()
    assert (
        metrics.matthews_corrcoef(probs, torch.tensor(true)) == sklearn.metrics.matthews_corrcoef(true, predicted) == 0
    )


def test_matthews_of_a_set_is_not_the_mean_over_its_batches():
    predicted, true = torch.tensor([0, 1, 1, 1, 0, 0]), torch.tensor([0, 1, 0, 1, 0, 1])
    probs = torch.nn.functional.one_hot(predicted, 2).double()
    found = metrics.evaluate(probs, true)["mcc"]
    assert found == pytest.approx((2 * 2 - 1 * 1) / math.sqrt(3 * 3 * 3 * 3), abs=1e-6)
    parts = [metrics.evaluate(probs[part], true[part])["mcc"] for part in (slice(0, 2), slice(2, 6))]
    assert abs(sum(parts) / 2 - found) > 0.1


def test_matthews_of_one_class_throughout_is_zero():
    assert metrics.matthews_corrcoef(torch.tensor([[0.1, 0.9], [0.2, 0.8]]), torch.tensor([1, 1])) == 0


def test_matthews_needs_its_own_rule_for_constants():
    """Torchmetrics says 0.47; if this fails, torchmetrics has changed and the rule can go."""
    predicted, true = torch.ones(10, dtype=torch.int64), torch.tensor([1] * 8 + [0] * 2)
    assert multiclass_matthews_corrcoef(predicted, true, num_classes=2) > 0.4


# --- Properties


@property_test
@given(outcomes, st.randoms(use_true_random=False))
def test_order_of_examples_does_not_matter(items, random):
    probs, labels = predictions(*zip(*items, strict=True))
    order = random.sample(range(len(items)), len(items))
    expected = metrics.evaluate(probs, labels)
    assert metrics.evaluate(probs[order], labels[order]) == pytest.approx(expected, abs=1e-6, nan_ok=True)


@property_test
@given(outcomes, st.permutations(range(3)))
def test_names_of_classes_do_not_matter(items, renaming):
    probs, labels = predictions(*zip(*items, strict=True))
    renamed = probs[:, torch.tensor(renaming).argsort()], torch.tensor(renaming)[labels]
    expected = metrics.evaluate(probs, labels)
    assert metrics.evaluate(*renamed) == pytest.approx(expected, abs=1e-6, nan_ok=True)


@property_test
@given(outcomes)
def test_values_lie_in_their_ranges(items):
    values = metrics.evaluate(*predictions(*zip(*items, strict=True)))
    assert values["eaurc"] >= 0
    assert values["nll"] >= 0
    assert 0 <= values["brier"] <= 2
    assert values["ece"] <= values["mce"] + 1e-6
    fractions = set(values) - {"nll", "brier"}
    assert all(-1e-6 <= values[key] <= 1 + 1e-6 or math.isnan(values[key]) for key in fractions)


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
    assert metrics.auroc(probs, labels) == pytest.approx(0, abs=1e-6)
    assert metrics.fpr95(probs, labels) == 1
    assert metrics.eaurc(probs, labels) > 0


# --- Edges


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
    assert {key: values[key] for key in expected} == pytest.approx(expected, abs=1e-6)


def test_most_probable_class_among_equals_is_the_lowest():
    probs = torch.tensor([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]])
    assert metrics.accuracy(probs, torch.tensor([0, 1])) == 1
    assert metrics.matthews_corrcoef(probs, torch.tensor([0, 1])) == 1


@pytest.mark.parametrize("top", [1.0, 1 + 1e-7, 1 + 9e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_at_or_just_above_one_are_one(top, dtype):
    # Right at 1 and .95, wrong at .75. A softmax in torchmetrics would move ECE and MCE.
    rows = [[top, 0.0, 0.0], [0.95, 0.05, 0.0], [0.75, 0.25, 0.0]]
    values = metrics.evaluate(torch.tensor(rows, dtype=dtype), torch.tensor([0, 0, 1]))
    expected = {
        "accuracy": 2 / 3,
        "mcc": 0,
        "aurc": 1 / 9,
        "eaurc": 0,
        "auroc": 1,
        "aupr_success": 1,
        "aupr_error": 1,
        "fpr95": 0,
        "ece": (0.05 / 2) * 2 / 3 + 0.75 / 3,
        "mce": 0.75,
        "nll": -(math.log(0.95) + math.log(0.25)) / 3,
        "brier": (2 * 0.05**2 + 2 * 0.75**2) / 3,
    }
    assert values == pytest.approx(expected, abs=1e-6)


def test_negative_rounding_is_zero():
    tiny = torch.finfo(torch.float32).tiny
    value = metrics.nll(torch.tensor([[1.00005, -0.00005]]), torch.tensor([1]))
    assert value == pytest.approx(-math.log(tiny))


@pytest.mark.parametrize(
    ("dtype", "cost"),
    [(torch.float64, 708.396), (torch.float32, 87.336), (torch.bfloat16, 87.336), (torch.float16, 9.704)],
)
def test_zero_probability_costs_the_smallest_normal_number_of_the_dtype(dtype, cost):
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=dtype)
    assert metrics.nll(probs, torch.tensor([1, 0])) == pytest.approx(cost / 2, abs=1e-3)


def test_confidences_near_one_keep_their_order():
    # The two largest below 1 in float64; in float32 both round to 1, a tie.
    probs, labels = predictions([1 - 2**-53, 1 - 2**-52], [1, 0])
    assert [getattr(metrics, key)(probs, labels) for key in DETECTION] == [1, 1, 1, 0]
    assert metrics.eaurc(probs, labels) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_float64(dtype):
    # Multiples of 1/256 below 1/2, of 1/64 above: exact in every dtype.
    confidence = torch.arange(33, 64).repeat(20) / 64
    probs, labels = predictions(confidence, torch.arange(620) % 3 == 0)
    rounded = probs.to(dtype)
    assert torch.equal(rounded.double(), probs)
    assert metrics.evaluate(rounded, labels) == metrics.evaluate(probs, labels)


def test_bfloat16_softmax_is_not_mistaken_for_unnormalised_scores():
    probs, labels = random_predictions(0)
    rounded = probs.bfloat16()
    assert (rounded.double().sum(dim=1) - 1).abs().max() > 1e-3
    assert metrics.brier(rounded, labels) == pytest.approx(metrics.brier(probs, labels), abs=5e-3)


def test_device_gradient_integer_width_and_memory_layout_do_not_matter():
    expected = metrics.evaluate(PROBS, LABELS)
    column_major = PROBS.T.contiguous().T.requires_grad_()
    assert not column_major.is_contiguous()
    assert metrics.evaluate(column_major, LABELS.to(torch.uint8)) == expected
    if torch.cuda.is_available():
        assert metrics.evaluate(PROBS.cuda(), LABELS.cuda()) == expected


def test_inputs_are_left_alone():
    probs, labels = torch.tensor([[1 + 1e-5, -1e-5], [0.3, 0.7]], dtype=torch.float64), torch.tensor([0, 0])
    copies = probs.clone(), labels.clone()
    metrics.evaluate(probs, labels)
    assert torch.equal(probs, copies[0])
    assert torch.equal(labels, copies[1])


# --- Interface


def test_evaluate_collects_each_metric_as_a_float():
    values = metrics.evaluate(PROBS, LABELS)
    assert values == {key: function(PROBS, LABELS) for key, function in FUNCTIONS.items()}
    assert list(values) == list(metrics.DISPLAY)
    assert list(values)[:2] == ["accuracy", "mcc"]
    assert {type(value) for value in values.values()} == {float}


def test_evaluate_hands_on_bins():
    values = metrics.evaluate(PROBS, LABELS, bins=4)
    assert values["ece"] == pytest.approx(0.4 * 0.15 + 0.6 * 0.65 / 3, abs=1e-6)
    assert values["mce"] == pytest.approx(0.65 / 3, abs=1e-6)


def test_display_has_the_scaling_of_the_papers():
    scales = {metric.title: metric.scale for metric in metrics.DISPLAY.values()}
    assert scales == {
        "ACC": 100,
        "MCC": 100,
        "AURC": 1000,
        "E-AURC": 1000,
        "AUROC": 100,
        "AUPR-Success": 100,
        "AUPR-Error": 100,
        "FPR95": 100,
        "ECE": 100,
        "MCE": 100,
        "NLL": 10,
        "Brier": 100,
    }


def test_display_directions_favour_the_better_classifier():
    good = metrics.evaluate(*renamed(*predictions([0.97, 0.97, 0.97, 0.64, 0.62], [1, 1, 1, 1, 0])))
    bad = metrics.evaluate(*renamed(*predictions([0.99, 0.98, 0.97, 0.90, 0.85], [0, 0, 0, 1, 1])))
    for key, metric in metrics.DISPLAY.items():
        better, worse = (good, bad) if metric.higher_is_better else (bad, good)
        assert better[key] > worse[key], key


# --- Errors

HALVES = torch.full((4, 2), 0.5)
ZEROS = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (HALVES[:, 0], ZEROS, r"probs must have shape \(examples, classes\), got \(4,\): average over draws"),
        (HALVES.expand(10, 4, 2), ZEROS, r"got \(10, 4, 2\): average over draws first"),
        (HALVES, ZEROS[:3], r"labels must have shape \(4,\), one index per row of probs, got \(3,\)"),
        (HALVES, HALVES.long(), r"got \(4, 2\): pass one-hot labels as labels.argmax\(-1\)"),
        (HALVES.long(), ZEROS, "probs must be floating point, got torch.int64: pass probabilities"),
        (
            HALVES,
            ZEROS.float(),
            r"must be integer class indices, got torch.float32: use labels.long\(\)",
        ),
        (HALVES, ZEROS.bool(), "labels must be integer class indices, got torch.bool"),
        (HALVES, ZEROS.cfloat(), "labels must be integer class indices, got torch.complex64"),
        (HALVES[:0], ZEROS[:0], "probs and labels are empty: a metric needs at least one example"),
        (HALVES[:, :1], ZEROS, r"at least two classes, got 1: for a binary task pass both, torch.cat"),
        (HALVES, ZEROS - 1, r"labels must lie in 0..1 for 2 classes, got -1..-1: number classes from 0"),
        (HALVES, ZEROS + 2, r"labels must lie in 0..1 for 2 classes, got 2..2"),
        (
            HALVES.index_fill(0, ZEROS[:1], math.nan),
            ZEROS,
            "must be finite, got NaN or infinity in 1 of 4 rows",
        ),
        (HALVES / 0, ZEROS, "must be finite, got NaN or infinity in 4 of 4 rows: check the network"),
        (HALVES * 6 - 2, ZEROS + 1, r"rows of probs must sum to 1 within 0.001, row 0 sums to 2"),
        (torch.tensor([[3.0, -2.0]]), ZEROS[:1], r"lie in \[0, 1\], got -2..3: logits\? apply softmax first"),
        (torch.tensor([[1.0002, -0.0]]), ZEROS[:1], r"lie in \[0, 1\], got -0..1.0002: logits"),
        (torch.tensor([[1.0, -0.0002]]), ZEROS[:1], r"probs must lie in \[0, 1\], got -0.0002..1: logits"),
        (HALVES * 0.9, ZEROS, r"row 0 sums to 0.9: independent sigmoids or unnormalised scores\? normalise"),
        (torch.tensor([[0.5, 0.5], [0.5, 0.5015]]), ZEROS[:2], "row 1 sums to 1.0015"),
        ((HALVES * 0.9).bfloat16(), ZEROS, "must sum to 1 within 0.0078, row 0"),
    ],
)
@pytest.mark.parametrize("function", [metrics.evaluate, metrics.risk_coverage, metrics.matthews_corrcoef, metrics.nll])
def test_malformed_inputs_say_what_to_do(function, probs, labels, message):
    with pytest.raises(ValueError, match=message):
        function(probs, labels)


@pytest.mark.parametrize("function", [*FUNCTIONS.values(), metrics.risk_coverage, metrics.evaluate])
def test_every_metric_refuses_logits(function):
    with pytest.raises(ValueError, match="logits"):
        function(torch.tensor([[3.0, -2.0]]), torch.tensor([0]))


@pytest.mark.parametrize("bins", [0, -1, 2.5, None])
@pytest.mark.parametrize("function", [metrics.ece, metrics.mce, metrics.evaluate])
def test_bins_must_be_a_positive_int(function, bins):
    with pytest.raises(ValueError, match=f"bins must be an int of at least 1, got {bins}: the papers use 15"):
        function(PROBS, LABELS, bins=bins)


def test_rows_may_be_off_by_rounding():
    loose = torch.tensor([[0.5, 0.5009], [0.7, 0.2991]], dtype=torch.float64)
    assert metrics.accuracy(loose, torch.tensor([1, 0])) == 1


# ---------------------------------------------------------------- ordered classes, metrics by kind of likelihood


def test_rps_is_the_crps_of_the_class_as_a_number():
    """E|Y − y| − ½ E|Y − Y′| over the classes' numbers, by a loop (Gneiting & Raftery, 2007, eq. 21)."""
    probs, labels = random_predictions(3, n=50)
    expected = []
    for row, y in zip(probs.tolist(), labels.tolist(), strict=True):
        near = sum(p * abs(k - y) for k, p in enumerate(row))
        apart = sum(p * q * abs(k - j) for k, p in enumerate(row) for j, q in enumerate(row))
        expected.append(near - apart / 2)
    assert metrics.rps(probs, labels) == pytest.approx(np.mean(expected), rel=1e-9)


def test_rps_of_sure_predictions_is_how_many_classes_they_are_off_by():
    for off in range(4):
        assert metrics.rps(torch.eye(4)[:1], torch.tensor([off])) == off


def test_metrics_follow_the_kind_of_likelihood():
    probs, labels = random_predictions(4, n=60)
    assert metrics.evaluate_prediction(Prediction(probs=probs, labels=labels)) == metrics.evaluate(probs, labels)
    ordered = metrics.evaluate_prediction(Prediction(probs=probs, labels=labels, ordered=True))
    assert ordered == metrics.evaluate(probs, labels) | {"rps": metrics.rps(probs, labels)}
    p, y = torch.rand(2, 60, 3), torch.randint(2, (60, 3))
    binary = Prediction(mean=p.mean(0), labels=y, components=(dist.Bernoulli(p).to_event(1),))
    assert metrics.evaluate_prediction(binary) == multilabel.evaluate(p.mean(0), y)
    law = dist.Poisson(3 * p).to_event(1)
    counts = Prediction(mean=law.mean.mean(0), labels=law.sample()[0], components=(law,))
    assert metrics.evaluate_prediction(counts) == regression.evaluate(counts, counts.labels)
    for each in (ordered, *map(metrics.evaluate_prediction, (binary, counts))):
        unknown = set(each) - set(metrics.MONITORS)
        assert unknown <= {"coverage_50", "coverage_90"}  # which have no better direction
    with pytest.raises(ValueError, match="metrics need labels"):
        metrics.evaluate_prediction(Prediction(probs=probs))
