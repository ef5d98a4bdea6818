"""Maps from points to M features ψ, whose kernel is ψ(x)ᵀ ψ(y): anchors, and Fourier features.

Shapes: ``...`` are leading dimensions (draws, batch), ``H`` heads, ``N`` tokens, ``M`` features.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from probattn.functional import jitter
from probattn.functional.kernels import rbf
from probattn.functional.triangular import inverse


class FeatureMap(ABC):
    """ψ(x)ᵀ = functions(x)ᵀ C: functions of a point, and a matrix of each head that mixes them."""

    mixing: Tensor | None = None
    """C ``(H, M, M)``; None for the identity."""

    @abstractmethod
    def functions(self, points: Tensor) -> Tensor:
        """Return the functions ``(..., H, N, M)`` of points ``(..., H, N, width)``."""

    def mixed(self, functions: Tensor) -> Tensor:
        """Return ψ, from the functions."""
        return functions if self.mixing is None else functions @ self.mixing

    def residual(self, features: Tensor) -> Tensor | None:
        """Return the kernel's variance at points less ‖ψ‖², from ψ ``(..., M)``; None where it
        is 0."""
        return None


@dataclass(frozen=True, eq=False)
class Anchors(FeatureMap):
    """ψ(x) = K⁻¹ κ(Z, x), K Kᵀ = κ(Z, Z), the RBF kernel of unit variance: ‖ψ‖² ≤ 1.

    Args:
        anchors: Z ``(H, M, width)``.
    """

    anchors: Tensor

    @cached_property
    def mixing(self) -> Tensor:  # type: ignore[override]
        """K⁻ᵀ, so that ψ(x)ᵀ = κ(x, Z) K⁻ᵀ."""
        tril = jitter.cholesky(rbf(self.anchors, self.anchors), "κ(Z, Z), of the anchors")
        return inverse(tril, upper=False).mT

    def functions(self, points: Tensor) -> Tensor:
        """Return κ(x, Z)."""
        return rbf(points, self.anchors)

    def residual(self, features: Tensor) -> Tensor:
        """Return 1 − ‖ψ‖²."""
        return (1 - features.square().sum(-1)).clamp(min=0)


@dataclass(frozen=True, eq=False)
class Fourier(FeatureMap):
    """ψ(x) = s (2/M)^½ [cos ωᵀx, sin ωᵀx] for M/2 frequencies ω (Rahimi & Recht, 2007): ‖ψ‖² = s².

    Points are angles ωᵀx, of width M/2. A phase would rotate each pair, which changes neither the
    kernel nor the law of any output.

    Args:
        variance: s² ``(H,)``.
    """

    variance: Tensor

    def functions(self, points: Tensor) -> Tensor:
        """Return the features of angles ``(..., H, N, M/2)``."""
        scale = (self.variance / points.shape[-1]).sqrt()[:, None, None]
        return scale * torch.cat((points.cos(), points.sin()), dim=-1)


def orthogonal_frequencies(shape: tuple[int, int, int], *, equal: bool) -> Tensor:
    """Return random frequencies whose features have the RBF kernel of length scale 1 on average
    (Yu et al., 2016).

    They are orthogonal in blocks of ``width``, each alone uniform in its direction.

    Args:
        shape: heads, frequencies, width.
        equal: all of length √width, as the authors of RFF-GPA have them (their kernel is that of
            the sphere); else of the lengths of normal vectors, for which the mean is exact.
    """
    heads, number, width = shape
    blocks = -(-number // width)
    # Columns: LAPACK fixes their signs, of which the kernel is independent; rows it would bias.
    directions = torch.linalg.qr(torch.randn(heads, blocks, width, width)).Q.mT
    directions = directions.flatten(1, 2)[:, :number]
    if equal:
        return width**0.5 * directions
    return torch.randn(shape).norm(dim=-1, keepdim=True) * directions
