"""Tensors in float64, in which formulae are compared."""

import functools

import torch

F64 = torch.float64
eye64 = functools.partial(torch.eye, dtype=F64)
ones64 = functools.partial(torch.ones, dtype=F64)
tensor64 = functools.partial(torch.tensor, dtype=F64)
zeros64 = functools.partial(torch.zeros, dtype=F64)
randn64 = functools.partial(torch.randn, dtype=F64)
"""Standard normal numbers from the random state of the test."""
