"""Validation of labels that are class indices."""

from collections.abc import Sequence

import torch
from torch import Tensor


def class_labels(labels: Tensor, *, examples: int, classes: int) -> Tensor:
    """Return labels ``(examples,)`` as int64, detached.

    Raises:
        ValueError: labels of another shape; not integers, which PyTorch's losses refuse, too; outside 0 to classes − 1.
    """
    if labels.shape != (examples,):
        raise ValueError(
            f"labels must have shape ({examples},), one index per row of probs, got {tuple(labels.shape)}"
            + remedy(labels, examples)
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integer class indices, got {labels.dtype}: use labels.long()")
    labels = labels.detach().long()
    if examples and (labels.min() < 0 or labels.max() >= classes):
        raise ValueError(
            f"labels must lie in 0..{classes - 1} for {classes} classes, got {labels.min()}..{labels.max()}: "
            "number classes from 0 and drop ignored examples first"
        )
    return labels


def check_shape(labels: Tensor, shape: Sequence[int]) -> None:
    """Refuse labels of another shape than the likelihood's, which would broadcast.

    Raises:
        ValueError: says what makes indices of columns or one-hot rows.
    """
    if labels.shape != torch.Size(shape):
        hint = remedy(labels, shape[0]) if len(shape) == 1 else ""
        raise ValueError(f"the likelihood takes labels of shape {tuple(shape)}, got {tuple(labels.shape)}{hint}")


def remedy(labels: Tensor, examples: int) -> str:
    """Return what makes indices of labels of the wrong shape: squeeze a column of indices, argmax of one-hot rows."""
    if labels.shape == (examples, 1):
        return ": pass labels.squeeze(1)"
    return ": pass one-hot labels as labels.argmax(-1)" if labels.dim() == 2 and len(labels) == examples else ""
