"""The smooth calibration error, by the package relplot."""

from torch import Tensor

from probattn.inference.imports import extra, without_side_effects
from probattn.inference.metrics.classes import confidence_and_correct


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
