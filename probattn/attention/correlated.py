"""What the dense and the sparse correlated-GP layers share: projections, output and regulariser."""

from abc import abstractmethod
from typing import Literal

import pyro.distributions as dist
import pyro.poutine as poutine
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.attention.kernels import RBF
from probattn.distributions import ColumnNormal
from probattn.functional import linalg
from probattn.functional.correlated import Canonical, Correlated

CHOICES = {
    "guide": ("posterior", "prior", "learned"),
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
        with torch.no_grad():
            self.query_key_value.weight[: 2 * dim] *= RBF(heads, self.head_dim).gain
            self.latent.weight *= RBF(heads, self.head_dim).gain
        self.log_scales = nn.Parameter(torch.zeros(2, heads))
        self.log_noise = nn.Parameter(torch.full((heads,), noise).log(), requires_grad=learn_noise)
        self.canonical = None
        if guide == "learned":
            self.canonical = nn.Linear(dim, dim + heads)
            nn.init.zeros_(self.canonical.weight)
            nn.init.zeros_(self.canonical.bias)
        self.out = nn.Linear(dim, dim)

    def signature(self) -> dict[str, int | str]:
        """Guide and output, beside what every layer has."""
        return super().signature() | {"guide": self.guide, "output": self.output}

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
            law = self.law(*(_precise(t) for t in projected), mask)
            output = linalg.check_finite(law.mean, "ν, the mean of z_q given z_k")
            if self.alpha > 0 and self.is_scored():
                self._regularise(law, _precise(x))
            if self.output == "draw":
                predictive = ColumnNormal(output, law.predictive)
                output = self.sample_local("f", predictive, predictive)
        return self.out(self.join_heads(output))

    @abstractmethod
    def law(self, query: Tensor, key: Tensor, value: Tensor, latent: Tensor, mask: Tensor | None) -> Correlated:
        """The joint law at the tokens, from projections ``(..., H, N, head_dim)`` in float32 or better."""

    def attention_matrix(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The matrix ``(..., H, N, N)`` that maps values to the mean output, 0 at padding."""
        x = self.checked(x, mask)
        query, key, _ = self.split_heads(self.query_key_value(x), 3)
        (latent,) = self.split_heads(self.latent(x), 1)
        unit = torch.eye(x.shape[-2]).to(x).expand(*x.shape[:-2], self.heads, -1, -1)
        with self.precise():
            return self.law(*(_precise(t) for t in (query, key, unit, latent)), mask).mean

    def _regularise(self, law: Correlated, x: Tensor) -> None:
        """Adds α R (CGP paper, eq. 28), as one factor or as the sites whose densities it is made of."""
        weight = self.alpha / self._count(law)
        if self.regulariser == "closed":
            exact = self.guide == "posterior"
            r = law.log_marginal() if exact else law.regulariser(self._canonical(law, x))
            unit = dist.Unit(weight * r.sum(-1))
            self.observe("regulariser", unit, unit.sample(), regulariser=True)
            return
        prior = ColumnNormal(torch.zeros_like(law.mean), law.prior)
        posterior = prior if self.guide == "prior" else ColumnNormal(*self._canonical(law, x))
        with poutine.scale(scale=weight):
            z_o = self.sample_local("z_o", prior, posterior, regulariser=True)
            query, key = law.query_mean(z_o), law.key_mean(z_o)
            self.observe("z_q", ColumnNormal(query, law.query_covariance), law.mean, regulariser=True)
            self.observe("z_k", ColumnNormal(key, law.key_covariance), law.observed_key, regulariser=True)

    def _canonical(self, law: Correlated, x: Tensor) -> Canonical:
        """The guide of z_o."""
        if self.guide == "prior":
            return Canonical(torch.zeros_like(law.mean), law.prior)
        if self.guide == "posterior":
            return law.posterior()
        loc, raw_scale = self.canonical(x).split([self.dim, self.heads], dim=-1)
        (loc,), scale = self.split_heads(loc, 1), 1e-3 + F.softplus(raw_scale + 0.5397424).mT  # 1 at first: the prior
        if law.real is not None:
            loc, scale = loc.where(law.real.unsqueeze(-1), 0.0), scale.where(law.real, 1.0)
        return law.learned(loc, scale)

    def _count(self, law: Correlated) -> int | Tensor:
        """What R is divided by: 1, the columns of all heads, or these times the real tokens of each example."""
        if self.per == "example":
            return 1
        tokens = law.count if self.per == "scalar" else 1
        return self.dim * (tokens.squeeze(-1) if isinstance(tokens, Tensor) else tokens)


def _precise(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
