"""The two forms of correlated-GP attention: the output drawn through z_o, or given z_k with z_o integrated out.

Each is called with the layer, the joint law at the tokens, and the tokens ``(..., N, dim)`` in float32 or better, and
returns the heads' outputs ``(..., H, N, head_dim)``.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from torch import Tensor

from probattn.distributions import ColumnNormal
from probattn.functional import errors
from probattn.functional.correlated import Canonical, Correlated
from probattn.functional.gaussian import Covariance

if TYPE_CHECKING:
    from probattn.attention.correlated import CorrelatedAttention


def through_z_o(layer: "CorrelatedAttention", law: Correlated, x: Tensor) -> Tensor:
    """Draws z_o, observes z_k and z_q = ν given it (CGP paper, eqs. 28 and 42), and draws the output given it."""
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


def collapsed(layer: "CorrelatedAttention", law: Correlated, x: Tensor) -> Tensor:
    """Adds α R in closed form (CGP paper, eq. 28), and draws the output given z_k alone."""
    output = errors.check_finite(law.mean, "ν, the mean of z_q given z_k")
    if _is_regularised(layer):
        unit = dist.Unit(layer.weight(law) * layer.canonical.regulariser(law, x).sum(-1))
        layer.observe("regulariser", unit, unit.sample(), regulariser=True)
    return _output(layer, output, law.predictive) if layer.output == "draw" else output


def _output(layer: "CorrelatedAttention", loc: Tensor, covariance: Covariance) -> Tensor:
    """Draws z_q, whose prior is its posterior."""
    law = ColumnNormal(loc, covariance)
    return layer.sample_local("z_q", law, law)


def _posterior(prior: ColumnNormal, found: Canonical | dist.TorchDistribution) -> dist.TorchDistribution:
    """q(z_o): the prior itself where that is the guide, so that neither density is computed."""
    if not isinstance(found, Canonical):
        return found
    return prior if found.loc is None else ColumnNormal(*found)


def _is_regularised(layer: "CorrelatedAttention") -> bool:
    return layer.alpha > 0 and layer.is_scored()


def _weighted(layer: "CorrelatedAttention", weight: float | Tensor) -> AbstractContextManager:
    """Scales the densities of sites inside; α = 0 leaves them out."""
    if layer.alpha == 0:
        return poutine.mask(mask=False)
    return poutine.scale(scale=weight) if layer.is_scored() else nullcontext()
