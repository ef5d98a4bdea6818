"""Precision of float32 matrix products during training."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from probattn.functional import dtypes

MatmulPrecision = Literal["highest", "high", "medium"]
"""Precisions of :func:`torch.set_float32_matmul_precision`."""


@contextmanager
def float32_products(precision: MatmulPrecision | None, *, device: torch.device) -> Iterator[None]:
    """Set the precision of float32 matrix products inside, and restore it at the end.

    Args:
        precision: as ``matmul_precision`` of :class:`~probattn.inference.training.options.TrainOptions`; nothing
            changes where PyTorch's setting was made for each backend on its own.
        device: device of the model.
    """
    if precision is None and device.type == "cuda":
        precision = "high"
    with dtypes.float32_products(precision):
        yield
