"""Calibration of the top label's confidence; see :mod:`~probattn.inference.metrics.classification` for inputs."""

import torch
from torch import Tensor

from probattn.inference.metrics.inputs import confidence_and_correct


def ece(probs: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Expected calibration error of the top label, 0 to 1 (Naeini et al., 2015).

    ``Σ_b (n_b / n) |accuracy_b − mean confidence_b|`` over ``bins`` intervals of equal width, closed on the left, the
    last one on both sides. Edges b / bins are rounded to the dtype of ``probs``, so that a confidence computed as
    b / bins lies on its edge in any precision.

    Raises:
        ValueError: bins is not a positive int; invalid inputs.
    """
    share, gap = _gaps(probs, labels, bins)
    return float((share * gap).sum())


def mce(probs: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Maximum calibration error of the top label, 0 to 1 (Naeini et al., 2015).

    ``max_b |accuracy_b − mean confidence_b|`` over the bins of :func:`ece`; a bin with one example weighs as much as a
    full one.

    Raises:
        ValueError: bins is not a positive int; invalid inputs.
    """
    _, gap = _gaps(probs, labels, bins)
    return float(gap.max())


def _gaps(probs: Tensor, labels: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Share of the examples and ``|accuracy − mean confidence|`` per bin ``(bins,)``; 0 for empty bins."""
    if not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins must be an int of at least 1, got {bins!r}: the papers use 15")
    confidence, correct = confidence_and_correct(probs, labels)
    edges = (torch.arange(1, bins, dtype=torch.float64) / bins).to(probs.dtype).double()
    index = torch.bucketize(confidence, edges, right=True)
    count = torch.bincount(index, minlength=bins)
    difference = torch.bincount(index, weights=correct.double() - confidence, minlength=bins)
    return count.double() / len(confidence), (difference / count.clamp(min=1)).abs()
