"""The calibration error that chance alone gives a calibrated model, and the one without bins, by
the package relplot."""

from typing import NamedTuple

import torch
from torch import Tensor

from probattn.inference.imports import extra, without_side_effects
from probattn.inference.metrics.classes import confidence_and_correct, confidence_bins, ece

BINS = 15
"""Bins of the ECE."""
DRAWS = 1000
"""Draws of all labels."""
CHUNK = 2_000_000
"""Labels that are drawn at once."""


class ChanceFloor(NamedTuple):
    """The calibration error of a calibrated model with the same confidences.

    Args:
        mean: of its ECE.
        high: exceeded with probability 0.05; an ECE below it shows no miscalibration.
        p_value: probability that its ECE is at least as large as the measured one.
    """

    mean: float
    high: float
    p_value: float


def ece_floor(probs: Tensor, labels: Tensor, *, draws: int = DRAWS) -> ChanceFloor:
    """Return the chance floor of :func:`~probattn.inference.metrics.ece` by consistency resampling.

    In a calibrated model the predicted class is right with the probability that it has (Bröcker
    and Smith, 2007).

    Args:
        probs: mean probabilities ``(n, classes)``.
        labels: ``(n,)``.
        draws: number of draws of all labels, from a fixed seed.

    Raises:
        ValueError: as ``ece`` raises.
    """
    confidence, _ = confidence_and_correct(probs, labels)
    number = len(confidence)
    members = torch.nn.functional.one_hot(confidence_bins(confidence, BINS, probs.dtype), BINS)
    generator = torch.Generator().manual_seed(0)
    errors = []
    for size in torch.arange(draws).split(max(1, CHUNK // number)):
        uniform = torch.rand(len(size), number, dtype=torch.float64, generator=generator)
        right = (uniform < confidence).double()
        # Σ_b |Σ_{i in b} (right_i − confidence_i)| / n
        errors.append(((right - confidence) @ members.double()).abs().sum(1) / number)
    drawn = torch.cat(errors)
    at_least = int((drawn >= ece(probs, labels, bins=BINS) - 1e-12).sum())
    p_value = (1 + at_least) / (1 + draws)
    return ChanceFloor(float(drawn.mean()), float(drawn.quantile(0.95)), p_value)


def smece(probs: Tensor, labels: Tensor) -> float:
    """Return the smooth calibration error of the confidence, which has no bins: the largest
    bandwidth σ of a kernel below which the smoothed error is σ (Błasiok & Nakkiran, 2024).

    Args:
        probs: mean probabilities ``(n, classes)``.
        labels: ``(n,)``.

    Raises:
        MissingExtraError: relplot is not installed.
        ValueError: as :func:`~probattn.inference.metrics.ece` raises.
    """
    confidence, correct = confidence_and_correct(probs, labels)
    with extra("calibration", needed_by="smece"), without_side_effects():
        from relplot import smECE
    return float(smECE(f=confidence.double().numpy(), y=correct.double().numpy()))
