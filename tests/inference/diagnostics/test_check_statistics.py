"""Test statistics by hand."""

import math

import pytest
import torch

from probattn.inference import Prediction, metrics
from probattn.inference.diagnostics import check_statistics
from probattn.inference.diagnostics.check_statistics import (
    STATISTICS,
    default_statistics,
    evaluate,
    optional_parameters,
    resolve,
)

PROBS = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.6, 0.3, 0.1]])
CLASSES = Prediction(probs=PROBS)
LABELS = torch.tensor([0, 1, 0, 1])
NUMBERS = Prediction(mean=torch.tensor([[1.0, 0.0], [3.0, 4.0]]), variance=torch.ones(2, 2))
TARGETS = torch.tensor([[2.0, 0.0], [5.0, 1.0]])


def test_statistics_of_classes():
    assert check_statistics.accuracy(LABELS, CLASSES) == 0.5
    assert check_statistics.class_frequencies(LABELS, CLASSES).tolist() == [0.5, 0.5, 0.0]
    assert math.isclose(check_statistics.entropy(LABELS, CLASSES), math.log(2))
    assert check_statistics.entropy(torch.zeros(4, dtype=torch.long), CLASSES) == 0
    # 15 bins: 0.7 and 0.8 right, 0.4 and 0.6 wrong, each in a bin of its own.
    assert math.isclose(check_statistics.ece(LABELS, CLASSES), (0.3 + 0.2 + 0.4 + 0.6) / 4, rel_tol=1e-6)
    assert check_statistics.ece(LABELS, CLASSES) == metrics.ece(PROBS, LABELS)


def test_statistics_of_classes_take_the_dtypes_of_labels():
    for dtype in (torch.uint8, torch.int32):
        for statistic in check_statistics.CLASSIFICATION:
            torch.testing.assert_close(
                torch.as_tensor(statistic(LABELS.to(dtype), CLASSES)), torch.as_tensor(statistic(LABELS, CLASSES))
            )


def test_statistics_of_numbers():
    assert check_statistics.mean(TARGETS, NUMBERS).tolist() == [3.5, 0.5]
    assert check_statistics.std(TARGETS, NUMBERS).tolist() == [1.5, 0.5]
    expected = [math.sqrt((1 + 4) / 2), math.sqrt((0 + 9) / 2)]
    torch.testing.assert_close(check_statistics.rmse(TARGETS, NUMBERS), torch.tensor(expected, dtype=torch.float64))


def share_of_zeros(labels, prediction):
    return (labels == 0).double().mean()


def test_statistics_are_resolved_by_name_by_function_and_by_mapping():
    assert list(resolve(default_statistics(CLASSES))) == ["accuracy", "class_frequencies", "ece", "entropy"]
    assert list(resolve(default_statistics(NUMBERS))) == ["mean", "std", "rmse"]
    assert list(resolve(default_statistics(Prediction(mean=torch.tensor([[math.nan], [1.0]]))))) == ["mean", "std"]
    chosen = resolve(["ece", share_of_zeros, "mean"])
    assert chosen == {"ece": check_statistics.ece, "share_of_zeros": share_of_zeros, "mean": check_statistics.mean}
    assert resolve({"zeros": share_of_zeros}) == {"zeros": share_of_zeros}
    assert all(STATISTICS[name] is resolve([name])[name] for name in STATISTICS)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (["acuracy"], "unknown test statistic 'acuracy'; known: accuracy, class_frequencies"),
        ([], "no test statistic"),
        ({}, "no test statistic"),
        ([share_of_zeros, share_of_zeros], "two test statistics are called 'share_of_zeros'"),
        (["ece", check_statistics.ece], "two test statistics are called 'ece'"),
    ],
)
def test_statistics_that_cannot_be_resolved(chosen, message):
    with pytest.raises(ValueError, match=message):
        resolve(chosen)


def test_values_are_double_and_what_is_no_number_is_refused_by_name():
    for value in (0.5, True, torch.tensor(0.5), torch.tensor([1, 2]), torch.tensor(2.0, requires_grad=True)):
        result = evaluate("t", lambda *_, value=value: value, LABELS, CLASSES)
        assert result.dtype == torch.float64
        assert not result.requires_grad
        assert torch.equal(result, torch.as_tensor(value).double())
    with pytest.raises(ValueError, match="'broken' is NaN"):
        evaluate("broken", lambda *_: torch.tensor([0.0, math.nan]), LABELS, CLASSES)
    with pytest.raises(ValueError, match=r"'matrix' must return a number or a vector, got shape \(2, 2\)"):
        evaluate("matrix", lambda *_: torch.zeros(2, 2), LABELS, CLASSES)


def test_a_statistic_that_does_not_exist_for_some_labels_is_refused():
    """AUROC of all right predictions, as in the metrics."""
    with pytest.raises(ValueError, match="'auroc' is NaN"):
        evaluate("auroc", lambda y, p: metrics.auroc(p.probs, y), PROBS.argmax(-1), CLASSES)


def test_what_a_statistic_asks_for_is_what_its_signature_names_behind_labels_and_prediction():
    assert optional_parameters(lambda y, p: 0) == ()
    assert optional_parameters(lambda y, p, x: 0) == ("x",)
    assert optional_parameters(lambda y, p, latents=None, *, x: 0) == ("x", "latents")
    assert optional_parameters(lambda x, latents: 0) == ()  # these are the labels and the prediction
    assert optional_parameters(lambda *_: 0) == optional_parameters(lambda y, p, **_: 0) == ()
    assert all(optional_parameters(each) == () for each in STATISTICS.values())
    assert optional_parameters(max) == ()
    assert evaluate("t", lambda y, p, *, x: x.sum(), LABELS, CLASSES, x=torch.ones(3)) == 3
