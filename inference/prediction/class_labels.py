"""Validation of labels."""

from collections.abc import Sequence

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
        takes = f"the likelihood takes labels of shape {tuple(shape)}, got {tuple(labels.shape)}"
        hint = "pass labels.squeeze(1) of a column, or labels.argmax(-1) of one-hot rows"
        raise ValueError(f"{takes}: {hint}" if len(shape) == 1 else takes)
