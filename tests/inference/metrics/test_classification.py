"""Metrics against arithmetic done by hand, scikit-learn, brute force, and the properties that define them."""

import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from metric_cases import DETECTION, FUNCTIONS, LABELS, PROBS, outcomes, predictions, property_test, random_predictions

from probattn.inference import metrics

# Top labels 0 0 1 2 1 with confidences .95 .9 .8 .7 .6: right, wrong, right, right, wrong.


def renamed(probs, labels):
    """The same with other names of the classes in every other example, so that predictions are of two classes."""
    cycle = torch.arange(len(probs)) % 2
    rolled = torch.stack([row.roll(int(by)) for row, by in zip(probs, cycle, strict=True)])
    return rolled, (labels + cycle) % probs.shape[1]


# Confidences on a grid of exact binary fractions in (1/2, 1], so that ties are frequent and 1 − c is exact.


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


def test_matthews_by_hand():
    # Predicted 0 0 1 2 1, true 0 2 1 2 0: c = 3 right of s = 5; predicted counts 2 2 1, true counts 2 1 2.
    # (c s − Σ p t) / √((s² − Σ p²)(s² − Σ t²)) = (15 − 8) / √(16 · 16).
    assert metrics.mcc(PROBS, LABELS) == pytest.approx(7 / 16, abs=1e-12)


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
    assert {key: values[key] for key in expected} == pytest.approx(expected, abs=1e-12)
    assert metrics.mcc(probs, labels) == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, top), abs=1e-12)


@pytest.mark.parametrize(("predicted", "true"), [([1] * 10, [1] * 8 + [0] * 2), ([0, 1, 1, 1], [1] * 4)])
def test_matthews_of_a_constant_is_zero_as_in_scikit_learn(predicted, true):
    probs = torch.nn.functional.one_hot(torch.tensor(predicted), 2).float()
    assert metrics.mcc(probs, torch.tensor(true)) == sklearn.metrics.matthews_corrcoef(true, predicted) == 0


def test_matthews_of_a_set_is_not_the_mean_over_its_batches():
    predicted, true = torch.tensor([0, 1, 1, 1, 0, 0]), torch.tensor([0, 1, 0, 1, 0, 1])
    probs = torch.nn.functional.one_hot(predicted, 2).double()
    found = metrics.evaluate(probs, true)["mcc"]
    assert found == pytest.approx((2 * 2 - 1 * 1) / math.sqrt(3 * 3 * 3 * 3), abs=1e-12)
    parts = [metrics.evaluate(probs[part], true[part])["mcc"] for part in (slice(0, 2), slice(2, 6))]
    assert abs(sum(parts) / 2 - found) > 0.1


def test_matthews_of_one_class_throughout_is_zero():
    assert metrics.mcc(torch.tensor([[0.1, 0.9], [0.2, 0.8]]), torch.tensor([1, 1])) == 0


@property_test
@given(outcomes, st.randoms(use_true_random=False))
def test_order_of_examples_does_not_matter(items, random):
    probs, labels = predictions(*zip(*items, strict=True))
    order = random.sample(range(len(items)), len(items))
    expected = metrics.evaluate(probs, labels)
    assert metrics.evaluate(probs[order], labels[order]) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@property_test
@given(outcomes, st.permutations(range(3)))
def test_names_of_classes_do_not_matter(items, renaming):
    probs, labels = predictions(*zip(*items, strict=True))
    renamed = probs[:, torch.tensor(renaming).argsort()], torch.tensor(renaming)[labels]
    expected = metrics.evaluate(probs, labels)
    assert metrics.evaluate(*renamed) == pytest.approx(expected, abs=1e-12, nan_ok=True)


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


def test_most_probable_class_among_equals_is_the_lowest():
    probs = torch.tensor([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]])
    assert metrics.accuracy(probs, torch.tensor([0, 1])) == 1
    assert metrics.mcc(probs, torch.tensor([0, 1])) == 1


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


def test_evaluate_collects_each_metric_as_a_float():
    values = metrics.evaluate(PROBS, LABELS)
    assert values == {key: function(PROBS, LABELS) for key, function in FUNCTIONS.items()}
    assert list(values) == list(FUNCTIONS)
    assert list(values)[:2] == ["accuracy", "mcc"]
    assert {type(value) for value in values.values()} == {float}


def test_directions_favour_the_better_classifier():
    good = metrics.evaluate(*renamed(*predictions([0.97, 0.97, 0.97, 0.64, 0.62], [1, 1, 1, 1, 0])))
    bad = metrics.evaluate(*renamed(*predictions([0.99, 0.98, 0.97, 0.90, 0.85], [0, 0, 0, 1, 1])))
    for key in FUNCTIONS:
        better, worse = (good, bad) if metrics.MONITORS[key] else (bad, good)
        assert better[key] > worse[key], key


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
