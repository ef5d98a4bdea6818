"""The calibration error of calibrated models, against binomial laws."""

import pytest
import torch
from scipy.stats import binom

from probattn.inference.metrics import ece
from probattn.inference.metrics.calibration_errors import ece_floor


def with_confidence(confidence, number):
    return torch.tensor([[confidence, 1 - confidence]], dtype=torch.float64).expand(number, 2)


@pytest.mark.parametrize(("confidence", "number"), [(0.9, 20), (0.7, 200)])
def test_with_one_confidence_it_is_the_mean_deviation_of_a_binomial_law(confidence, number):
    counts = range(number + 1)
    deviations = [abs(count / number - confidence) for count in counts]
    law = binom(number, confidence).pmf(counts)
    mean = float(law @ deviations)
    std = float(law @ [value**2 for value in deviations] - mean**2) ** 0.5
    labels = torch.zeros(number, dtype=torch.long)
    floor = ece_floor(with_confidence(confidence, number), labels, draws=4000)
    assert floor.mean == pytest.approx(mean, abs=5 * std / 4000**0.5)
    # P(deviation > high) ≤ 0.05 ≤ P(deviation ≥ high), up to five standard errors of the quantile.
    noise = 5 * (0.05 * 0.95 / 4000) ** 0.5
    assert law @ [value > floor.high + 1e-9 for value in deviations] <= 0.05 + noise
    assert law @ [value >= floor.high - 1e-9 for value in deviations] >= 0.05 - noise
    # All labels are right, so that the measured deviation is 1 − confidence.
    at_least = law @ [value >= 1 - confidence - 1e-9 for value in deviations]
    assert floor.p_value == pytest.approx(at_least, abs=5 * 0.5 / 4000**0.5)


def test_a_calibrated_model_exceeds_the_floor_in_one_case_of_twenty():
    """Of 200 data sets of a calibrated model."""
    exceeded = []
    for _ in range(200):
        probs = torch.randn(60, 3, dtype=torch.float64).softmax(-1)
        labels = torch.distributions.Categorical(probs=probs).sample()
        exceeded.append(ece(probs, labels) > ece_floor(probs, labels).high)
    assert sum(exceeded) / 200 <= 0.05 + 5 * (0.05 * 0.95 / 200) ** 0.5


def test_overconfidence_is_no_chance():
    logits = 2 * torch.randn(2000, 3, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=logits).sample()
    probs = (3 * logits).softmax(-1)
    assert ece(probs, labels) > ece_floor(probs, labels).high
    assert ece_floor(probs, labels).p_value < 0.01
    # None of nine draws is as large; the measured one counts as a tenth.
    assert ece_floor(probs, labels, draws=9).p_value == pytest.approx(0.1)
