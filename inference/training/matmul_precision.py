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
        precision: ``"highest"`` is float32, ``"high"`` TF32 on GPUs that have it, ``"medium"`` bfloat16 where PyTorch
            has such products. None is ``"high"`` on a GPU, and no change on a CPU or where the precision was set for
            each backend on its own. What the layers factorise is always computed in float32.
        device: device of the model.
    """
    before = dtypes.matmul_precision()
    if precision is None and device.type == "cuda" and before is not None:
        precision = "high"
    if precision is None:
        yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before or "highest")
