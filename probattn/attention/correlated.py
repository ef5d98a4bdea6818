"""What the dense and the sparse correlated-GP layers share: projections, output and regulariser."""

from abc import abstractmethod
from typing import Any, Literal

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.attention.canonical import GUIDES
from probattn.attention.kernels import RBF
from probattn.distributions import ColumnNormal
from probattn.functional import dtypes, errors
from probattn.functional.correlated import Correlated

CHOICES = {
    "guide": tuple(GUIDES),
    "regulariser": ("closed", "draws"),
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
        guide: Literal["posterior", "prior", "learned"],
        regulariser: Literal["closed", "draws"],
        output: Literal["mean", "draw"],
        alpha: float,
        per: Literal["scalar", "column", "example"],
        bias: bool,
    ) -> None:
        super().__init__(dim, heads)
        chosen = {"guide": guide, "regulariser": regulariser, "output": output, "per": per}
        for option, value in chosen.items():
            if value not in CHOICES[option]:
                raise ValueError(f"{option} must be one of {', '.join(CHOICES[option])}, got {value!r}")
        if noise <= 0 or alpha < 0:
            raise ValueError(f"need noise > 0 and alpha ≥ 0; got {noise}, {alpha}")
        self.guide, self.regulariser, self.output, self.alpha, self.per = guide, regulariser, output, alpha, per
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=bias)
        self.latent = nn.Linear(dim, dim, bias=bias)
        self.gain = RBF(heads, self.head_dim).gain
        with torch.no_grad():
            for parameter in (*self.latent.parameters(), *(p[: 2 * dim] for p in self.query_key_value.parameters())):
                parameter *= self.gain
        self.log_scales = nn.Parameter(torch.zeros(2, heads))
        self.log_noise = nn.Parameter(torch.full((heads,), noise).log(), requires_grad=learn_noise)
        self.canonical = GUIDES[guide](dim, heads)
        self.out = nn.Linear(dim, dim)

    def signature(self) -> dict[str, int | str]:
        """What is put out, beside what every layer has."""
        return super().signature() | {"output": self.output}

    def is_stochastic(self) -> bool:
        """Whether the output is drawn."""
        return self.output == "draw"

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
            output = errors.check_finite(law.mean, "ν, the mean of z_q given z_k")
            if self.alpha > 0 and self.is_scored():
                self._regularise(law, dtypes.at_least_float32(x))
            if self.output == "draw":
                predictive = ColumnNormal(output, law.predictive)
                output = self.sample_local("f", predictive, predictive)
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
        query, key, value, latent = map(dtypes.at_least_float32, (query, key, value, latent))
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

    def _regularise(self, law: Correlated, x: Tensor) -> None:
        """Adds α R (CGP paper, eq. 28), as one factor or as the sites whose densities it is made of."""
        weight = self.alpha / self._count(law)
        if self.regulariser == "closed":
            unit = dist.Unit(weight * self.canonical.regulariser(law, x).sum(-1))
            self.observe("regulariser", unit, unit.sample(), regulariser=True)
            return
        prior = ColumnNormal(torch.zeros_like(law.mean), law.prior)
        loc, covariance = self.canonical(law, x)
        posterior = prior if loc is None else ColumnNormal(loc, covariance)
        with poutine.scale(scale=weight):
            z_o = self.sample_local("z_o", prior, posterior, regulariser=True)
            query, key = law.means(z_o)
            self.observe("z_q", ColumnNormal(query, law.query_covariance), law.mean, regulariser=True)
            self.observe("z_k", ColumnNormal(key, law.key_covariance), law.observed_key, regulariser=True)

    def _count(self, law: Correlated) -> int | Tensor:
        """What R is divided by: 1, the columns of all heads, or these times the real tokens of each example."""
        if self.per == "example":
            return 1
        tokens = law.count if self.per == "scalar" else 1
        return self.dim * (tokens.squeeze(-1) if isinstance(tokens, Tensor) else tokens)
