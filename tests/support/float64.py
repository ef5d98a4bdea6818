"""Tensors in float64, in which formulae are compared."""

import functools

import torch

F64 = torch.float64
tensor64 = functools.partial(torch.tensor, dtype=F64)
randn64 = functools.partial(torch.randn, dtype=F64)
"""Standard normal numbers from the random state of the test."""
