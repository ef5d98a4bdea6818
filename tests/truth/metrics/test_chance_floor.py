"""The calibration error of calibrated models, against binomial laws."""

import pytest
import torch
from scipy.stats import binom

from probattn.inference.metrics.chance_floor import ece_floor


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
    assert floor.std == pytest.approx(std, rel=0.2)
    # All labels are right: the p-value is that of a deviation of at least 1 − confidence.
    exact = float(law @ [value >= 1 - confidence - 1e-9 for value in deviations])
    error = (exact * (1 - exact) / 4000) ** 0.5
    assert abs(floor.p_value - exact) <= 5 * error + 1 / 4000


def test_the_p_value_of_a_calibrated_model_is_uniform_or_larger():
    """P(p ≤ 0.2) ≤ 0.2 over 200 data sets of a calibrated model."""
    p_values = []
    for _ in range(200):
        probs = torch.randn(60, 3, dtype=torch.float64).softmax(-1)
        labels = torch.distributions.Categorical(probs=probs).sample()
        p_values.append(ece_floor(probs, labels, draws=99).p_value)
    share = sum(value <= 0.2 for value in p_values) / 200
    assert share <= 0.2 + 5 * (0.2 * 0.8 / 200) ** 0.5


def test_overconfidence_is_no_chance():
    logits = 2 * torch.randn(2000, 3, dtype=torch.float64)
    labels = torch.distributions.Categorical(logits=logits).sample()
    assert ece_floor((3 * logits).softmax(-1), labels).p_value < 0.01
