"""Conclusions in words, against numbers computed by hand."""

import pytest
import torch
from scipy import stats

from probattn.experiments.reporting.conclusion import conclusion
from probattn.inference import Prediction


def imbalanced(result, confidence=0.9, **changes):
    """180 ships and 90 frogs that are right but for 9, and 30 cats of which one is recognised."""
    labels = torch.tensor([2] * 180 + [1] * 90 + [0] * 30)
    right = torch.eye(3, dtype=torch.float64)[[2] * 180 + [1] * 81 + [2] * 9 + [0] + [2] * 29]
    probs = right * confidence + (1 - right) * (1 - confidence) / 2
    return conclusion(
        result(Prediction(probs=probs, labels=labels), classes=("cat", "frog", "ship"), **changes)
    )


def test_rare_classes_that_are_hardly_recognised_or_covered_are_named(result):
    coverage = {"class/cat": 5 / 30, "class/frog": 1.0, "class/ship": 1.0}
    accuracy, weak, *_ = imbalanced(
        result,
        sets={name: {"coverage": value} for name, value in coverage.items()},
        decisions={"plain sets": {"coverage": 0.9, "size": 1.2}},
    )
    low, high = stats.binomtest(262, 300).proportion_ci(method="exact")
    for words in ("262 of 300", f"{100 * low:.1f} % to {100 * high:.1f} %", "60.0 %"):
        assert words in accuracy
    for words in ("cat (1 of 30 right), frog (81 of 90 right)", "cat: 29 times", "16.7 %"):
        assert words in weak


@pytest.mark.parametrize(
    ("confidence", "words"),
    [(262 / 300, "can be trusted"), (0.99, "too confident"), (0.6, "not confident enough")],
)
def test_confidence_is_judged_by_its_calibration(result, confidence, words):
    assert words in imbalanced(result, confidence)[2]
