"""Random Fourier features of points of an attention layer, with parameters for each head."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probattn import priors
from probattn.attention.base import ProbabilisticAttention
from probattn.attention.kernels import ScaledKernel
from probattn.attention.options import check_choice, check_positive
from probattn.functional import dtypes
from probattn.functional.feature_maps import Fourier, orthogonal_frequencies
from probattn.sites import Sites

Frequencies = Literal["orthogonal", "independent", "equal", "sampled"]


class FourierFeatures(ScaledKernel):
    """Features of s² exp(−½ Σ_i (a_i − b_i)² / ℓ_i²), or of the kernel whose spectral density a
    prior is.

    Args:
        heads: number of heads H.
        head_dim: width d of a head.
        features: M, an even number.
        frequencies: fixed ones, ``"orthogonal"`` with lengths of normal vectors, ``"independent"``
            normal vectors or ``"equal"`` (orthogonal, of length √d / ℓ), or ``"sampled"``.
        prior: of the sampled ones, one of :mod:`probattn.priors` or its name, at scale 1/ℓ.
        lengthscale: initial ℓ; by default one for which ‖(a − b)/ℓ‖² is about 1 initially.
        variance: initial s².

    Raises:
        ValueError: an invalid option, with the valid ones.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        features: int,
        frequencies: Frequencies,
        prior: priors.Prior | str | None,
        lengthscale: float | None,
        variance: float,
    ) -> None:
        check_positive(lengthscale=lengthscale, features=features)
        check_choice("frequencies", frequencies, ("orthogonal", "independent", "equal", "sampled"))
        if features % 2:
            raise ValueError(f"features are pairs of cos and sin: need an even number, {features=}")
        if prior is not None and frequencies != "sampled":
            raise ValueError('a prior of frequencies needs frequencies="sampled"')
        super().__init__(heads, head_dim, variance=variance)
        if lengthscale is not None:
            nn.init.constant_(self.log_lengthscale, math.log(lengthscale))
        self.prior = priors.resolve(prior)
        shape = (heads, features // 2, head_dim)
        self.register_buffer("frequencies", None)
        if frequencies == "independent":
            self.frequencies = torch.randn(shape)
        elif frequencies != "sampled":
            self.frequencies = orthogonal_frequencies(shape, equal=frequencies == "equal")
        self.shape = shape

    def map(self) -> Fourier:
        """Return the map from angles to features."""
        return Fourier(self.variance)


class FourierLayer(ProbabilisticAttention):
    """A layer whose kernel has Fourier features, for a layer class to inherit from first."""

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        features: int = 16,
        frequencies: Frequencies = "orthogonal",
        prior: priors.Prior | str | None = None,
        lengthscale: float | None = None,
        variance: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(dim, heads, **options)
        self.fourier = FourierFeatures(
            heads,
            self.head_dim,
            features=features,
            frequencies=frequencies,
            prior=prior,
            lengthscale=lengthscale,
            variance=variance,
        )

    def signature(self) -> dict[str, int | str]:
        """Return the signature of the layer, and the prior of sampled frequencies."""
        is_sampled = self.fourier.frequencies is None
        prior = {"prior": priors.name_of(self.fourier.prior)} if is_sampled else {}
        return super().signature() | prior

    def sites(self) -> Sites:
        """Return the prior of ``frequencies``, if they are sampled: the kernel's spectral density,
        event ``(H, M/2, d)``."""
        if self.fourier.frequencies is not None:
            return {}
        scale = self.fourier.inverse_lengthscale().unsqueeze(-2).expand(self.fourier.shape)
        return {"frequencies": priors.at(self.fourier.prior, scale, event_dim=3)}

    def angles(
        self,
        x: Tensor,
        frequencies: Tensor | None,
        *further: nn.Linear,
    ) -> tuple[list[Tensor], Tensor]:
        """Return angles ωᵀx ``(..., H, N, M/2)`` of queries, keys (the same tensor if
        ``symmetric``) and the points of further maps, and values ``(..., H, N, head_dim)``.

        Args:
            x: checked tokens.
            frequencies: sampled ones ``(..., H, M/2, head_dim)``, or None for the fixed ones.
            further: maps to other points, ``(heads · head_dim, dim)``.
        """
        own = self.query_value if self.symmetric else self.query_key_value
        maps = (own, *further)
        omega = frequencies
        if omega is None:
            omega = self.fourier.frequencies * self.fourier.inverse_lengthscale().unsqueeze(-2)
        # Weights ωᵀW are fewer than W, and tokens are more than either. Maps of another class, such
        # as adapters of weights, are called.
        is_folded = frequencies is None and omega.shape[-2] < self.head_dim
        if is_folded and all(type(each) is nn.Linear and each.bias is None for each in maps):
            rows = torch.cat((own.weight[: -self.dim], *(each.weight for each in further)))
            by_head = dtypes.at_least_float32(rows).unflatten(0, (-1, self.heads, self.head_dim))
            # ωᵀW (points · H · M/2, dim), and then the rows of values as they are
            folded = (omega @ by_head).flatten(0, 2).to(rows.dtype)
            weight = torch.cat((folded, own.weight[-self.dim :]))
            projected = dtypes.at_least_float32(F.linear(x, weight))
            by_token, value = projected.split([len(folded), self.dim], dim=-1)
            by_token = by_token.unflatten(-1, (-1, self.heads, omega.shape[-2]))
            return list(by_token.transpose(-4, -2).unbind(-3)), self.split_heads(value, 1)[0]
        query, key, value = self.project(x)
        points = [query] if self.symmetric else [query, key]
        points += [self.split_heads(dtypes.at_least_float32(f(x)), 1)[0] for f in further]
        return [each @ omega.mT for each in points], value
