"""Floating-point types of factorisations: float32 or better, outside autocast."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor


@contextmanager
def without_autocast(device_type: str) -> Iterator[None]:
    """No autocast inside; where there is none anyway, nothing is done, which an exported program would repeat."""
    off = torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()
    with off:
        yield


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or float64 where it is that."""
    return x if x.dtype == torch.float64 else x.float()
