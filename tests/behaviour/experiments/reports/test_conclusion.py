"""Conclusions in words, against numbers computed by hand."""

from dataclasses import replace

import pytest
import torch
from scipy import stats

from probattn.experiments.reporting.conclusion import conclusion
from probattn.inference import Prediction, metrics


def answered(result, labels, answers, confidence=0.9, classes=("cat", "frog", "ship"), **changes):
    count = len(classes)
    right = torch.eye(count, dtype=torch.float64)[answers]
    probs = right * confidence + (1 - right) * (1 - confidence) / (count - 1)
    changes |= {"classes": classes, "metrics": metrics.evaluate(probs, labels)}
    changes |= {"test": Prediction(probs=probs, labels=labels)}
    return replace(result(n=len(labels), classes=count), **changes)


def imbalanced(result, **changes):
    """180 ships and 90 frogs that are right but for 9, and 30 cats of which one is recognised."""
    labels = torch.tensor([2] * 180 + [1] * 90 + [0] * 30)
    answers = torch.tensor([2] * 180 + [1] * 81 + [2] * 9 + [0] + [2] * 29)
    return answered(result, labels, answers, **changes)


def test_rare_classes_that_are_hardly_recognised_or_covered_are_named(result):
    rows = {"cat": {"coverage": 5 / 30}, "frog": {"coverage": 1.0}, "ship": {"coverage": 1.0}}
    run = imbalanced(result, by_class=rows, decisions={"plain sets": {"coverage": 0.9, "size": 1.2}})
    accuracy, weak, *_ = conclusion(run)
    low, high = stats.binomtest(262, 300).proportion_ci(method="exact")
    assert "262 of 300" in accuracy
    assert f"{100 * low:.1f} % to {100 * high:.1f} %" in accuracy
    assert "“ship” would be right on 60.0 %" in accuracy
    assert "cat (1 of 30 right), frog (81 of 90 right)." in weak
    assert "“ship” for cat: 29 times" in weak
    assert "hold cat in only 16.7 % of its cases" in weak


@pytest.mark.parametrize(
    ("confidence", "words"),
    [(262 / 300, "can be trusted"), (0.99, "too confident"), (0.6, "not confident enough")],
)
def test_confidence_is_judged_by_its_calibration(result, confidence, words):
    assert words in conclusion(imbalanced(result, confidence=confidence))[2]
