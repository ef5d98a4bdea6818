"""Base of attention layers that regress the values on features of the keys."""

from abc import abstractmethod
from dataclasses import replace
from typing import Literal

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn.attention.base import Laws, ProbabilisticAttention
from probattn.attention.options import check_choice, check_positive
from probattn.distributions import ColumnNormal
from probattn.functional import dtypes, padding
from probattn.functional.feature_maps import FeatureMap
from probattn.functional.feature_regression import FeatureRegression
from probattn.functional.gaussian import Dense


class RegressionAttention(ProbabilisticAttention):
    """Base of :class:`AnchoredAttention` and :class:`RFFGPAttention`, which document the options.

    The output at a query is the posterior mean of f, or a draw of it (see
    :mod:`probattn.functional.feature_regression`).
    """

    signed = ("output",)

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        noise: float = 1.0,
        learn_noise: bool = False,
        output: Literal["mean", "draw"] = "mean",
        alpha: float = 0.0,
        symmetric: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__(dim, heads)
        check_choice("output", output, ("mean", "draw"))
        check_positive(noise=noise)
        self.output, self.alpha = output, alpha
        self.add_projections(symmetric=symmetric, bias=bias)
        self.log_noise = self.log_of(noise, heads, learned=learn_noise)
        self.out = nn.Linear(dim, dim)

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
        return self.from_heads(output)

    def attention_matrix(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the matrix ``(..., H, N, N)`` that maps values to the mean output, 0 at
        padding."""
        x = self.checked(x, mask)
        latents = self.sample_all(self.sites())
        with self.precise():
            law = self.law(x, mask, **latents)
            tokens = law.value.shape[-2]
            unit = torch.eye(tokens, dtype=law.value.dtype, device=law.value.device)
            # The mean is linear in the values: its columns for unit vectors are the matrix.
            unit = unit.expand(*law.value.shape[:-1], tokens)
            law = replace(law, value=padding.rows(unit, law.real))
            return padding.rows(law.mean, law.real)

    @abstractmethod
    def law(self, x: Tensor, mask: Tensor | None, **latents: Tensor) -> FeatureRegression:
        """Return the law of the output at checked tokens; pure.

        Args:
            x, mask: checked.
            latents: values of the global sites by name.
        """

    def regression(
        self,
        features: FeatureMap,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
    ) -> FeatureRegression:
        """Return the regression of values on features of the keys, read at the queries.

        Args:
            features: the map from points to features.
            query, key: points ``(..., H, N, width)``.
            value: ``(..., H, N, head_dim)``.
            mask: as for the layer.
        """
        real, count = padding.real_and_count(mask, value)
        noise = (2 * dtypes.at_least_float32(self.log_noise)).exp()
        return FeatureRegression(
            features, query, key, padding.rows(value, real), noise, real, count
        )

    def weight_laws(self, law: FeatureRegression) -> Laws:
        """Return prior and posterior of w."""
        features = law.loc.shape[-2]
        identity = torch.eye(features, dtype=law.loc.dtype, device=law.loc.device)
        unit = Dense(identity.expand(self.heads, -1, -1), features)
        prior = ColumnNormal(torch.zeros_like(law.loc), unit)
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
