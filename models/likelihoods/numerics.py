"""Precision and positive parameters of likelihoods."""

import torch
from torch import Tensor


def at_least_float32(outputs: Tensor) -> Tensor:
    """Outputs in float32, or in float64 where they are: densities of bfloat16 and float16 are too coarse."""
    return outputs if outputs.dtype == torch.float64 else outputs.float()


def inverse_softplus(value: Tensor) -> Tensor:
    """The x with softplus(x) = value > 0."""
    return value + (-torch.expm1(-value)).log()
