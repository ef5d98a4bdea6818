"""The two programs of correlated-GP attention: with z_o sampled, or integrated out in closed form.

Each is called with the layer, the joint law at the tokens, and the tokens ``(..., N, dim)`` in float32 or better, and
returns the heads' outputs ``(..., H, N, head_dim)``.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from probattn.distributions import ColumnNormal
from probattn.functional import errors
from probattn.functional.correlated import Canonical, Correlated
from probattn.functional.gaussian import Covariance


class Layer(Protocol):
    """Attributes of :class:`~probattn.attention.correlated.CorrelatedAttention` that the programs use."""

    alpha: float
    output: str
    canonical: nn.Module

    def weight(self, law: Correlated) -> float | Tensor: ...  # noqa: D102
    def is_scored(self) -> bool: ...  # noqa: D102
    def sample_local(self, name: str, prior: Any, posterior: Any, **infer: Any) -> Tensor: ...  # noqa: D102
    def observe(self, name: str, distribution: Any, value: Tensor, **infer: Any) -> None: ...  # noqa: D102
    def factor(self, name: str, log_factor: Tensor, **infer: Any) -> None: ...  # noqa: D102


def through_z_o(layer: Layer, law: Correlated, x: Tensor) -> Tensor:
    """Sample z_o, observe z_k and z_q = ν given it (CGP paper, eqs. 28 and 42), and sample the output given it."""
    prior, weight = ColumnNormal(torch.zeros_like(law.value), law.prior), layer.weight(law)
    with _weighted(layer, weight):
        posterior = _posterior(prior, layer.canonical(law, x))
        z_o = layer.sample_local("z_o", prior, posterior, regulariser=True, weight=weight)
    query, key = law.means(z_o)
    errors.check_finite(query, "the mean of z_q given z_o")
    if _is_regularised(layer):
        with _weighted(layer, weight):
            layer.observe("z_k", ColumnNormal(key, law.key_covariance), law.observed_key, regulariser=True)
            layer.observe("nu", ColumnNormal(query, law.query_covariance), law.mean, regulariser=True)
    return _output(layer, query, law.query_covariance) if layer.output == "draw" else query


def collapsed(layer: Layer, law: Correlated, x: Tensor) -> Tensor:
    """Add α R in closed form (CGP paper, eq. 28), and sample the output given z_k alone."""
    output = errors.check_finite(law.mean, "ν, the mean of z_q given z_k")
    if _is_regularised(layer):
        layer.factor("regulariser", layer.weight(law) * layer.canonical.regulariser(law, x).sum(-1), regulariser=True)
    return _output(layer, output, law.predictive) if layer.output == "draw" else output


def _output(layer: Layer, loc: Tensor, covariance: Covariance) -> Tensor:
    """Sample z_q, whose posterior is its prior."""
    law = ColumnNormal(loc, covariance)
    return layer.sample_local("z_q", law, law)


def _posterior(prior: ColumnNormal, found: Canonical | dist.TorchDistribution) -> dist.TorchDistribution:
    """Return q(z_o): the prior object itself where that is the guide, so that neither density is computed."""
    if not isinstance(found, Canonical):
        return found
    return prior if found.loc is None else ColumnNormal(*found)


def _is_regularised(layer: Layer) -> bool:
    return layer.alpha > 0 and layer.is_scored()


def _weighted(layer: Layer, weight: float | Tensor) -> AbstractContextManager:
    """Return a context that scales the densities of sites inside; α = 0 leaves them out."""
    if not layer.is_scored():
        return nullcontext()
    return poutine.mask(mask=False) if layer.alpha == 0 else poutine.scale(scale=weight)
