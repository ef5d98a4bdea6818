"""Validation of class probabilities and labels, and predictions derived from them."""

import torch
from torch import Tensor

from probattn.inference.prediction.class_labels import class_labels

_RANGE_TOLERANCE = 1e-4
_SUM_TOLERANCE = 1e-3


def validate(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return probs as float64 clamped to [0, 1] and labels as int64, both on the CPU and detached.

    Raises:
        ValueError: wrong shapes or dtypes; no examples; fewer than two classes; labels out of range; probabilities that
            are not finite, outside [−1e-4, 1 + 1e-4], or in rows that do not sum to 1 within 1e-3 (7.8e-3 in bfloat16,
            its spacing at 1).
    """
    if probs.ndim != 2:
        raise ValueError(
            f"probs must have shape (examples, classes), got {tuple(probs.shape)}: average over draws first, "
            "and flatten any other leading dimensions"
        )
    if not probs.is_floating_point():
        raise ValueError(f"probs must be floating point, got {probs.dtype}: pass probabilities, not classes")
    if len(probs) == 0:
        raise ValueError("probs and labels are empty: a metric needs at least one example")
    classes = probs.shape[1]
    if classes < 2:
        raise ValueError(
            f"probs must have at least two classes, got {classes}: "
            "for a binary task pass both, torch.cat([1 - p, p], dim=1)"
        )
    labels = class_labels(labels, examples=len(probs), classes=classes).cpu()
    sum_tolerance = max(_SUM_TOLERANCE, torch.finfo(probs.dtype).eps)
    probs = probs.detach().cpu().double()
    if not probs.isfinite().all():
        rows = (~probs.isfinite().all(dim=1)).sum()
        raise ValueError(f"probs must be finite, got NaN or infinity in {rows} of {len(probs)} rows: check the network")
    if probs.min() < -_RANGE_TOLERANCE or probs.max() > 1 + _RANGE_TOLERANCE:
        raise ValueError(
            f"probs must lie in [0, 1], got {probs.min():.6g}..{probs.max():.6g}: logits? apply softmax first"
        )
    sums = probs.sum(dim=1)
    worst = (sums - 1).abs().argmax()
    if (sums[worst] - 1).abs() > sum_tolerance:
        raise ValueError(
            f"rows of probs must sum to 1 within {sum_tolerance:.2g}, row {worst} sums to {sums[worst]:.6g}: "
            "independent sigmoids or unnormalised scores? normalise over classes first"
        )
    return probs.clamp(0, 1), labels


def confidence_and_correct(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the top label's probability ``(n,)``, float64, and True for correct predictions ``(n,)``."""
    probs, labels = validate(probs, labels)
    confidence, predictions = probs.max(dim=1)
    return confidence, predictions == labels
