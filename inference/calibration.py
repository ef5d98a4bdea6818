"""Calibration of the top label's confidence; inputs and errors are those of :mod:`probattn.inference.metrics`."""

from typing import Literal

import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from probattn.inference.answers import checked

_BELOW_ONE = 1 - torch.finfo(torch.float32).eps / 2


def ece(probs: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Expected calibration error of the top label, 0 to 1 (Naeini et al., 2015).

    Σ_b (n_b / n) |accuracy_b − mean confidence_b| over ``bins`` intervals of equal width; each holds its
    left edge, the last one 1 too.

    Raises:
        ValueError: bins is not a positive int, or as in :mod:`probattn.inference.metrics`.
    """
    return _calibration_error(probs, labels, bins=bins, norm="l1")


def mce(probs: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Maximum calibration error of the top label, 0 to 1 (Naeini et al., 2015).

    max_b |accuracy_b − mean confidence_b| over the bins of :func:`ece`: one example weighs as much as a full
    bin.

    Raises:
        ValueError: bins is not a positive int, or as in :mod:`probattn.inference.metrics`.
    """
    return _calibration_error(probs, labels, bins=bins, norm="max")


def _calibration_error(probs: Tensor, labels: Tensor, *, bins: int, norm: Literal["l1", "max"]) -> float:
    if not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins must be an int of at least 1, got {bins!r}: the papers use 15")
    probs, labels = checked(probs, labels)
    # In torchmetrics, a float32 confidence of 1 has a bin to itself, and one above 1 means "apply softmax".
    below_one = probs.clamp(max=_BELOW_ONE)
    return float(multiclass_calibration_error(below_one, labels, probs.shape[1], n_bins=bins, norm=norm))
