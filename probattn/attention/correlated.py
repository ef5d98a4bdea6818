"""What the dense and the sparse correlated-GP layers share: projections, output and regulariser."""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.attention.canonical import GUIDES
from probattn.attention.kernels import RBF
from probattn.distributions import ColumnNormal
from probattn.functional import errors, linalg
from probattn.functional.correlated import Canonical, Correlated
from probattn.functional.gaussian import Covariance

CanonicalGuide = Literal["posterior", "prior", "learned"] | Callable[[int, int], nn.Module]
"""A guide of z_o, by name or as a factory ``(dim, heads) -> module`` (see :mod:`probattn.attention.canonical`)."""

CHOICES = {
    "output": ("mean", "draw"),
    "per": ("scalar", "column", "example"),
}


class CorrelatedAttention(ProbabilisticAttention):
    """Base of :class:`CGPAttention` and :class:`SparseCGPAttention`, whose options these are; see them."""

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        noise: float,
        learn_noise: bool,
        guide: CanonicalGuide,
        collapsed: bool,
        output: Literal["mean", "draw"],
        alpha: float,
        per: Literal["scalar", "column", "example"],
        bias: bool,
    ) -> None:
        super().__init__(dim, heads)
        for option, value in {"output": output, "per": per}.items():
            if value not in CHOICES[option]:
                raise ValueError(f"{option} must be one of {', '.join(CHOICES[option])}, got {value!r}")
        if not callable(guide) and guide not in GUIDES:
            raise ValueError(f"guide must be callable or one of {', '.join(GUIDES)}, got {guide!r}")
        if callable(guide) and collapsed:
            raise ValueError(f"collapsed=True has R in closed form for guides {', '.join(GUIDES)} alone, got {guide!r}")
        if noise <= 0 or alpha < 0:
            raise ValueError(f"need noise > 0 and alpha ≥ 0; got {noise}, {alpha}")
        self.collapsed, self.output, self.alpha, self.per = collapsed, output, alpha, per
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=bias)
        self.latent = nn.Linear(dim, dim, bias=bias)
        self.gain = RBF(heads, self.head_dim).gain
        with torch.no_grad():
            for parameter in (*self.latent.parameters(), *(p[: 2 * dim] for p in self.query_key_value.parameters())):
                parameter *= self.gain
        self.log_scales = nn.Parameter(torch.zeros(2, heads))
        self.log_noise = nn.Parameter(torch.full((heads,), noise).log(), requires_grad=learn_noise)
        self.canonical = guide(dim, heads) if callable(guide) else GUIDES[guide](dim, heads)
        self.guide = guide if isinstance(guide, str) else type(self.canonical).__name__
        self.out = nn.Linear(dim, dim)

    def signature(self) -> dict[str, int | str]:
        """Law of the output, beside what every layer has: the guide of z_o has a part in it where z_o is drawn."""
        through = {} if self.collapsed else {"guide": self.guide}
        return super().signature() | {"output": self.output, "collapsed": self.collapsed} | through

    def is_stochastic(self) -> bool:
        """False only for the mean output of the collapsed form."""
        return not self.collapsed or self.output == "draw"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Runs the program once.

        Args:
            x: ``(*draws, batch, tokens, dim)``.
            mask: ``(batch, tokens)``, True where there is a token.

        Returns:
            ``(*draws, batch, tokens, dim)``, with draws broadcast in.

        Raises:
            NumericalError: a NaN or Inf, or a covariance that cannot be factorised.
        """
        x = self.checked(x, mask)
        projected = (*self.split_heads(self.query_key_value(x), 3), *self.split_heads(self.latent(x), 1))
        with self.precise():
            law = self.law(self._given(*projected, mask))
            run = self._with_z_o_integrated_out if self.collapsed else self._through_z_o
            output = run(law, linalg.at_least_float32(x))
        return self.out(self.join_heads(output))

    @abstractmethod
    def law(self, given: dict[str, Any]) -> Correlated:
        """The joint law at the tokens, from the fields that both kinds share."""

    def attention_matrix(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The matrix ``(..., H, N, N)`` that maps values to the mean output, 0 at padding."""
        x = self.checked(x, mask)
        query, key, _ = self.split_heads(self.query_key_value(x), 3)
        (latent,) = self.split_heads(self.latent(x), 1)
        unit = torch.eye(x.shape[-2]).to(x).expand(*x.shape[:-2], self.heads, -1, -1)
        with self.precise():
            return self.law(self._given(query, key, unit, latent, mask)).mean

    def _given(self, query: Tensor, key: Tensor, value: Tensor, latent: Tensor, mask: Tensor | None) -> dict[str, Any]:
        """The fields of :class:`Correlated`, from projections ``(..., H, N, head_dim)``."""
        query, key, value, latent = map(linalg.at_least_float32, (query, key, value, latent))
        real = None if mask is None else mask.unsqueeze(-2)
        return {
            "query": query,
            "key": key,
            "latent": latent,
            "value": value if real is None else value.where(real.unsqueeze(-1), 0.0),
            "scales": self.log_scales.exp(),
            "noise": (2 * self.log_noise).exp(),
            "real": real,
            "count": query.shape[-2] if mask is None else mask.sum(-1, keepdim=True, dtype=query.dtype),
        }

    def _through_z_o(self, law: Correlated, x: Tensor) -> Tensor:
        """Draws z_o, observes z_k and z_q = ν given it (CGP paper, eqs. 28 and 42), and draws the output given it."""
        weight = self.alpha / self._count(law)
        prior = ColumnNormal(torch.zeros_like(law.value), law.prior)
        with self._weighted(weight):
            z_o = self.sample_local("z_o", prior, self._posterior(prior, law, x), regulariser=True, weight=weight)
        query, key = law.means(z_o)
        errors.check_finite(query, "the mean of z_q given z_o")
        if self._is_regularised():
            with self._weighted(weight):
                self.observe("z_k", ColumnNormal(key, law.key_covariance), law.observed_key, regulariser=True)
                self.observe("nu", ColumnNormal(query, law.query_covariance), law.mean, regulariser=True)
        return self._output(query, law.query_covariance) if self.output == "draw" else query

    def _with_z_o_integrated_out(self, law: Correlated, x: Tensor) -> Tensor:
        """Adds α R in closed form (CGP paper, eq. 28), and draws the output given z_k alone."""
        output = errors.check_finite(law.mean, "ν, the mean of z_q given z_k")
        if self._is_regularised():
            unit = dist.Unit(self.alpha / self._count(law) * self.canonical.regulariser(law, x).sum(-1))
            self.observe("regulariser", unit, unit.sample(), regulariser=True)
        return self._output(output, law.predictive) if self.output == "draw" else output

    def _output(self, loc: Tensor, covariance: Covariance) -> Tensor:
        """Draws z_q, whose prior is its posterior."""
        law = ColumnNormal(loc, covariance)
        return self.sample_local("z_q", law, law)

    def _posterior(self, prior: ColumnNormal, law: Correlated, x: Tensor) -> dist.TorchDistribution:
        """q(z_o): the prior itself where that is the guide, so that neither density is computed."""
        found = self.canonical(law, x)
        if not isinstance(found, Canonical):
            return found
        return prior if found.loc is None else ColumnNormal(*found)

    def _is_regularised(self) -> bool:
        return self.alpha > 0 and self.is_scored()

    def _weighted(self, weight: float | Tensor) -> AbstractContextManager:
        """Scales the densities of sites inside; a weight of 0 leaves them out."""
        if self.alpha == 0:
            return poutine.mask(mask=False)
        return poutine.scale(scale=weight) if self.is_scored() else nullcontext()

    def _count(self, law: Correlated) -> int | Tensor:
        """What R is divided by: 1, the columns of all heads, or these times the real tokens of each example."""
        if self.per == "example":
            return 1
        tokens = law.count if self.per == "scalar" else 1
        return self.dim * (tokens.squeeze(-1) if isinstance(tokens, Tensor) else tokens)
