"""Validation of probabilities and labels: precision, rounding, and errors of all metrics."""

import math

import pytest
import torch
from metric_cases import FUNCTIONS, LABELS, PROBS, predictions, random_predictions

from probattn.inference import metrics

# Top labels 0 0 1 2 1 with confidences .95 .9 .8 .7 .6: right, wrong, right, right, wrong.


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


HALVES = torch.full((4, 2), 0.5)


ZEROS = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("probs", "labels", "word"),
    [
        (HALVES[:, 0], ZEROS, "probs"),
        (HALVES.expand(10, 4, 2), ZEROS, "means over samples"),
        (HALVES, ZEROS[:3], "labels"),
        (HALVES, HALVES.long(), "labels"),
        (HALVES.long(), ZEROS, "int64"),
        (HALVES, ZEROS.float(), "float32"),
        (HALVES[:0], ZEROS[:0], "probs"),
        (HALVES[:, :1], ZEROS, "classes ≥ 2"),
        (HALVES, ZEROS - 1, r"0..1 for 2 classes, got -1..-1"),
        (HALVES, ZEROS + 2, r"0..1 for 2 classes, got 2..2"),
        (HALVES.index_fill(0, ZEROS[:1], math.nan), ZEROS, "softmax"),
        (HALVES / 0, ZEROS, "softmax"),
        (HALVES * 6 - 2, ZEROS + 1, "softmax"),
        (torch.tensor([[3.0, -2.0]]), ZEROS[:1], "softmax"),
        (torch.tensor([[1.0002, -0.0]]), ZEROS[:1], r"1.0002"),
        (torch.tensor([[1.0, -0.0002]]), ZEROS[:1], "softmax"),
        (HALVES * 0.9, ZEROS, "sum to 1"),
        (torch.tensor([[0.5, 0.5], [0.5, 0.5015]]), ZEROS[:2], r"0\.5015"),
        ((HALVES * 0.9).bfloat16(), ZEROS, "softmax"),
    ],
)
@pytest.mark.parametrize("function", [metrics.evaluate, metrics.risk_coverage, metrics.mcc, metrics.nll])
def test_malformed_inputs_are_refused(function, probs, labels, word):
    with pytest.raises(ValueError, match=word):
        function(probs, labels)


@pytest.mark.parametrize("function", [*FUNCTIONS.values(), metrics.risk_coverage, metrics.evaluate])
def test_every_metric_refuses_logits(function):
    with pytest.raises(ValueError, match="softmax"):
        function(torch.tensor([[3.0, -2.0]]), torch.tensor([0]))


def test_rows_may_be_off_by_rounding():
    loose = torch.tensor([[0.5, 0.5009], [0.7, 0.2991]], dtype=torch.float64)
    assert metrics.accuracy(loose, torch.tensor([1, 0])) == 1
