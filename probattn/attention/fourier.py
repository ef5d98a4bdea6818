"""Random Fourier features of points of an attention layer, with parameters for each head."""

import math
from typing import Any, Literal

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from probattn import priors
from probattn.attention.base import ProbabilisticAttention
from probattn.attention.kernels import ScaledKernel
from probattn.attention.options import check_choice, check_positive
from probattn.functional.feature_maps import Fourier, orthogonal_frequencies

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

    def signature(self) -> dict[str, int | str]:
        """Return the name of the prior of sampled frequencies."""
        return {} if self.frequencies is not None else {"prior": priors.name_of(self.prior)}

    def sites(self) -> dict[str, dist.TorchDistribution]:
        """Return the prior of sampled frequencies, the kernel's spectral density, event
        ``(H, M/2, d)``."""
        if self.frequencies is not None:
            return {}
        scale = self.inverse_lengthscale().unsqueeze(-2).expand(self.shape)
        return {"frequencies": priors.at(self.prior, scale, event_dim=3)}

    def angles(self, points: Tensor, frequencies: Tensor | None) -> Tensor:
        """Return ωᵀx ``(..., H, N, M/2)`` of points x ``(..., H, N, d)``, at fixed or sampled ω
        ``(..., H, M/2, d)``."""
        if frequencies is None:
            frequencies = self.frequencies * self.inverse_lengthscale().unsqueeze(-2)
        return points @ frequencies.mT

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
        return super().signature() | self.fourier.signature()

    def sites(self) -> dict[str, dist.TorchDistribution]:
        """Return the prior of ``frequencies``, if they are sampled."""
        return self.fourier.sites()
