"""Independent noise at every token, where the leading directions of the attention kernel do not reach."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyro.distributions as dist
import torch
from pyro.nn import PyroParam
from torch import Tensor

from probattn.functional import dtypes, jitter, subspace


class Layer(Protocol):
    """Attributes of :class:`~probattn.attention.kep_svgp.KEPSVGPAttention` that are used here."""

    rank: int
    pair: str
    solves: bool
    residual_amplitude: Tensor

    def precise(self) -> AbstractContextManager[None]: ...  # noqa: D102
    def sample_local(self, name: str, prior: Any, posterior: Any) -> Tensor: ...  # noqa: D102


def scale(query_key: Tensor, mask: Tensor | None, weights: tuple[Tensor, Tensor], pair: str, *, solved: bool) -> Tensor:
    """Return √(r₁ + r₂), r the residual variances of the two branches, ``(..., H, N)``, positive.

    A jitter, relative to the largest square of a cosine, bounds the gradient of the root where nothing is left out.

    Args:
        query_key: ``(2, ..., H, N, d)``.
        mask: ``(batch, N)``, True where there is a token.
        weights: W_e and W_r, ``(..., H, d, s)``.
        pair: the two branches, of ``"e"`` and ``"r"``.
        solved: the weights are those of ``projection="svd"``
            (see :func:`~probattn.functional.subspace.residual_variances`).
    """
    phi = subspace.features(query_key, mask)
    precise = map(dtypes.at_least_float32, weights)
    variances = subspace.residual_variances(phi, subspace.grams(phi), *precise, solved=solved)
    total = sum(variances["er".index(branch)] for branch in pair)
    return (total + jitter.JITTERS[total.dtype][0]).sqrt()


def amplitude(heads: int, value: float) -> PyroParam:
    """Return the parameter a > 0 ``(heads,)``, initially a value."""
    return PyroParam(torch.full((heads,), float(value)), constraint=dist.constraints.positive)


def sample(layer: Layer, query_key: Tensor, mask: Tensor | None, weights: tuple[Tensor, Tensor]) -> Tensor:
    """Sample ε = a √(r₁ + r₂) ξ ``(..., H, N, s)``, ξ ~ N(0, I) at the local site ``residual``; arguments as above."""
    with layer.precise():
        deviation = scale(query_key, mask, weights, layer.pair, solved=layer.solves)
        zeros = torch.zeros_like(deviation).unsqueeze(-1).expand(*deviation.shape, layer.rank)
        law = dist.Normal(zeros, zeros.new_ones(()), validate_args=False).to_event(3)
        deviation = layer.residual_amplitude.unsqueeze(-1) * deviation
        return deviation.unsqueeze(-1) * layer.sample_local("residual", law, law)
