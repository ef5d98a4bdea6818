"""Conclusions in words, against numbers computed by hand."""

import math
import re

import pytest
import torch
from pyro.distributions import Normal
from scipy import stats

from probattn.experiments.reporting.conclusion import conclusion
from probattn.inference import Prediction, metrics


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


def test_the_refinement_of_an_overconfident_network_is_lower_than_its_loss(result):
    """Labels drawn from p, of which the network says the cube."""
    logits = torch.randn(600, 3, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=logits).sample()
    test = Prediction(probs=(3 * logits).softmax(-1), labels=labels)
    sentence = next(text for text in conclusion(result(test)) if "refinement" in text)
    told, refined = map(float, re.search(r"NLL of ([\d.]+) would be ([\d.]+)", sentence).groups())
    assert told == pytest.approx(metrics.nll(test.probs, labels), rel=0.01)
    of_truth = -logits.log_softmax(-1).gather(1, labels[:, None])
    # Two significant digits, and five fits of three free parameters.
    assert abs(refined - of_truth.mean()) <= 5 * of_truth.std() / 600**0.5 + 0.02


def test_numbers_are_judged_by_their_error_and_by_what_their_intervals_hold(result):
    """40 predictions of N(3, 1): 10 true numbers are 1 below, 14 are 1.6 above, 16 are 2 above.

    The central 90 % intervals end 1.645 from their mean.
    """
    errors = torch.tensor([-1.0] * 10 + [1.6] * 14 + [2.0] * 16).unsqueeze(1)
    loc = torch.full((40, 1), 3.0)
    test = Prediction(
        mean=loc,
        variance=torch.ones(40, 1),
        labels=loc + errors,
        components=(Normal(loc.unsqueeze(0), 1.0).to_event(1),),
    )
    size, thirds, intervals, abstaining = conclusion(result(test, variants={}))[:4]
    rmse = math.sqrt((10 * 1 + 14 * 1.6**2 + 16 * 4) / 40)
    spread = float(errors.std(correction=0))
    assert f"error {rmse:.3g} on 40 test examples" in size
    assert f"mean would have {spread:.3g}." in size
    smallest = math.sqrt((10 * 1 + 4 * 1.6**2) / 14)
    assert f"numbers: {smallest:.3g}, " in thirds
    low, high = stats.binomtest(24, 40).proportion_ci(method="exact")
    assert "too narrow: they hold 60.0 %" in intervals
    assert f"{100 * low:.1f} % to {100 * high:.1f} %" in intervals
    assert f"from {rmse:.3g} to " in abstaining
