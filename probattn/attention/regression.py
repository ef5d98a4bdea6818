"""Base of attention layers that regress the values on features of the keys."""

from abc import abstractmethod
from typing import Literal

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn.attention.base import Laws, ProbabilisticAttention
from probattn.attention.options import check_choice, check_positive
from probattn.distributions import ColumnNormal
from probattn.functional import dtypes
from probattn.functional.feature_regression import FeatureRegression


class RegressionAttention(ProbabilisticAttention):
    """Base of :class:`AnchoredAttention` and :class:`RFFGPAttention`, which document the options.

    The output at a query is the posterior mean of f, or a draw of it (see
    :mod:`probattn.functional.feature_regression`).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        noise: float,
        learn_noise: bool,
        output: Literal["mean", "draw"],
        alpha: float,
        symmetric: bool,
        bias: bool,
    ) -> None:
        super().__init__(dim, heads)
        check_choice("output", output, ("mean", "draw"))
        check_positive(noise=noise)
        self.output, self.alpha, self.symmetric = output, alpha, symmetric
        if symmetric:
            self.query_value = nn.Linear(dim, 2 * dim, bias=bias)
        else:
            self.query_key_value = nn.Linear(dim, 3 * dim, bias=bias)
        log_noise = torch.full((heads,), noise).log()
        self.log_noise = (nn.Parameter if learn_noise else nn.Buffer)(log_noise)
        self.out = nn.Linear(dim, dim)

    def signature(self) -> dict[str, int | str]:
        """Return the base signature and the kind of output."""
        return super().signature() | {"output": self.output}

    def has_local_sites(self) -> bool:
        """Return False for the mean output."""
        return self.output == "draw"

    def is_stochastic(self) -> bool:
        """Return False for the mean output without global sites."""
        return self.has_local_sites() or bool(self.sites())

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run the program once; arguments, result and errors as in the base class."""
        x = self.checked(x, mask)
        latents = self.sample_all(self.sites())
        with self.precise():
            law = self.law(x, mask, **latents)
            if self.alpha:
                self.factor("evidence", self.alpha * law.evidence.sum(-1))
            output = law.mean if self.output == "mean" else self._draw(law)
        return dtypes.apply_linear(self.out, self.join_heads(output))

    @abstractmethod
    def law(self, x: Tensor, mask: Tensor | None, **latents: Tensor) -> FeatureRegression:
        """Return the law of the output at checked tokens; pure.

        Args:
            x, mask: checked.
            latents: values of the global sites by name.
        """

    def project(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys (the same tensor if ``symmetric``) and values, 0 at padding,
        ``(..., H, N, head_dim)``, in float32 or better."""
        if self.symmetric:
            query, value = self.split_heads(dtypes.at_least_float32(self.query_value(x)), 2)
            key = query
        else:
            query, key, value = self.split_heads(
                dtypes.at_least_float32(self.query_key_value(x)), 3
            )
        return query, key, value if mask is None else value.where(mask[:, None, :, None], 0.0)

    def sigma2(self) -> Tensor:
        """Return σ² ``(H,)``, in float32 or better."""
        return (2 * dtypes.at_least_float32(self.log_noise)).exp()

    def weight_laws(self, law: FeatureRegression) -> Laws:
        """Return prior and posterior of w."""
        prior = ColumnNormal(torch.zeros_like(law.loc), law.prior)
        return prior, ColumnNormal(law.loc, law.covariance)

    def _draw(self, law: FeatureRegression) -> Tensor:
        """Sample w from its posterior, and the output given w."""
        w = self.sample_local("w", *self.weight_laws(law))
        f = law.query_features @ w
        residual = law.residual
        if residual is None:
            return f
        unit = dist.Normal(torch.zeros_like(law.value), 1.0).to_event(3)
        noise = self.sample_local("residual", unit, unit)
        return f + residual.sqrt().unsqueeze(-1) * noise


def real_and_count(x: Tensor, mask: Tensor | None) -> tuple[Tensor | None, int | Tensor]:
    """Return where there are tokens, ``(batch, 1, N)``, and how many, from tokens and mask."""
    if mask is None:
        return None, x.shape[-2]
    return mask.unsqueeze(-2), mask.sum(-1, keepdim=True, dtype=dtypes.at_least_float32(x).dtype)
