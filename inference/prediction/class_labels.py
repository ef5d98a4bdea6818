"""Labels and probabilities of classes: their validation, entropy and log."""

from collections.abc import Sequence

import torch
from torch import Tensor


def class_labels(labels: Tensor, *, examples: int, classes: int) -> Tensor:
    """Return labels ``(examples,)`` as int64, detached.

    Raises:
        ValueError: labels of another shape; labels that are not integers from 0 to classes − 1.
    """
    check_shape(labels, (examples,))
    if labels.is_floating_point() or (labels < 0).any() or (labels >= classes).any():
        values = f"{labels.dtype} from {labels.min()} to {labels.max()}"
        raise ValueError(f"labels must be integer class indices 0..{classes - 1}, got {values}")
    return labels.detach().long()


def check_shape(labels: Tensor, shape: Sequence[int]) -> None:
    """Refuse labels of another shape than the likelihood's, which would broadcast.

    Raises:
        ValueError: says what makes indices of a column of indices or of one-hot rows.
    """
    if tuple(labels.shape) != tuple(shape):
        raise ValueError(
            f"the likelihood takes labels of shape {tuple(shape)}, got {tuple(labels.shape)}: of a "
            "column of indices pass labels.squeeze(1), of one-hot rows labels.argmax(-1)"
        )


def are_probs(rows: Tensor) -> Tensor:
    """Return which rows ``(n,)`` of ``(n, classes)`` lie in [−1e-4, 1 + 1e-4] and sum to 1 within
    1e-3 (7.8e-3 in bfloat16, its spacing at 1)."""
    tolerance = max(1e-3, torch.finfo(rows.dtype).eps)
    rows = rows.double()
    is_share = (rows >= -1e-4) & (rows <= 1 + 1e-4)
    return is_share.all(1) & ((rows.sum(1) - 1).abs() <= tolerance)


def valid_probs(probs: Tensor) -> Tensor:
    """Return probs as float64 clamped to [0, 1], on the CPU and detached.

    Raises:
        ValueError: a wrong shape or dtype; no examples; fewer than two classes; probabilities
            outside [−1e-4, 1 + 1e-4], or in rows that do not sum to 1 within 1e-3 (7.8e-3 in
            bfloat16, its spacing at 1).
    """
    if probs.ndim != 2 or probs.shape[1] < 2 or not len(probs) or not probs.is_floating_point():
        raise ValueError(
            f"probs must be (n, classes ≥ 2), means over samples, got {tuple(probs.shape)} of "
            f"{probs.dtype}"
        )
    valid = are_probs(probs)
    if not valid.all():
        row = probs[valid.int().argmin()].tolist()
        raise ValueError(
            f"rows of probs must lie in [0, 1] and sum to 1, got {row}: apply softmax to logits"
        )
    return probs.detach().cpu().double().clamp(0, 1)


def entropy(probs: Tensor) -> Tensor:
    """Entropy ``(...)`` of probabilities ``(..., classes)``, in nats."""
    return torch.special.entr(probs).sum(-1)


def log_of(probs: Tensor) -> Tensor:
    """Log of probabilities, finite: zeros count as the smallest normal number."""
    return probs.clamp(min=torch.finfo(probs.dtype).tiny).log()
