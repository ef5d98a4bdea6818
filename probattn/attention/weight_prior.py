"""Gaussian prior of weights relative to their number of inputs."""

from collections.abc import Iterable

import torch
from torch import Tensor

from probattn.functional import dtypes


def negative_log_density(weights: Iterable[tuple[Tensor, int]], deviation: float) -> Tensor:
    """Return −Σ log N(w; 0, deviation² / n) in nats over all scalars of the weights, a scalar in float32 or better.

    Args:
        weights: each with n, the number of inputs of each of its outputs.
        deviation: standard deviation, times √n.
    """
    terms = []
    for weight, inputs in weights:
        scale = deviation / inputs**0.5
        terms.append(-torch.distributions.Normal(0.0, scale).log_prob(dtypes.at_least_float32(weight)).sum())
    return torch.stack(terms).sum()
