"""Kernels of attention layers, with parameters for each head (CGP paper, sections 3 and 5.1).

A kernel maps points a ``(..., H, N, d)`` and b ``(..., H, M, d)`` to ``(..., H, N, M)``; pass one
tensor twice for the kernel of one set of points. ``gain`` is the factor on the initial weights of
``torch.nn.Linear`` for which ‖(a − b)/ℓ‖², or the variance of the exponent, is about 1 for points
projected from LayerNorm'ed tokens; without it their entries have variance 1/3.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from probattn.attention.options import check_choice, check_positive
from probattn.functional import kernels
from probattn.functional.dtypes import at_least_float32


class RBF(nn.Module):
    """κ_o(a, b) = exp(−½ ‖a − b‖²), without parameters: the projections of a and b carry the length
    scale.

    Args:
        heads: number of heads H.
        head_dim: width d of a head.
        variance: σ², which is fixed at 1.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        variance: float = 1.0,
    ) -> None:
        super().__init__()
        if variance != 1:
            raise ValueError(
                f'the rbf kernel has no parameters and variance 1, got {variance}; use "ard"'
            )
        self.gain = (1.5 / head_dim) ** 0.5

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the kernel of all pairs, ``(..., H, N, M)``."""
        return kernels.rbf(a, b)

    between = forward

    def scaled(self, a: Tensor) -> Tensor:
        """Return a."""
        return a

    def diagonal(self, a: Tensor) -> Tensor:
        """Return the kernel of each scaled point with itself, ``(..., H, N)``."""
        return a.new_ones(a.shape[:-1])


class ScaledKernel(nn.Module):
    """Base of kernels σ_h² κ(a / ℓ_h, b / ℓ_h) of head h; subclasses define κ and the initial ℓ².

    Args:
        heads: number of heads H.
        head_dim: width d of a head.
        variance: initial σ².
    """

    gain = 1.0

    def __init__(self, heads: int, head_dim: int, *, variance: float = 1.0) -> None:
        super().__init__()
        check_positive(variance=variance)
        lengthscale = self.initial_square(head_dim) ** 0.5
        self.log_lengthscale = nn.Parameter(torch.full((heads, head_dim), lengthscale).log())
        self.log_variance = nn.Parameter(torch.full((heads,), variance).log())

    @staticmethod
    def initial_square(head_dim: int) -> float:
        """Return the initial ℓ²."""
        return head_dim / 1.5

    @property
    def variance(self) -> Tensor:
        """σ² > 0, ``(H,)``."""
        return at_least_float32(self.log_variance).exp()

    def inverse_lengthscale(self) -> Tensor:
        """Return 1 / ℓ > 0, ``(H, d)``."""
        return (-at_least_float32(self.log_lengthscale)).exp()

    def scaled(self, a: Tensor) -> Tensor:
        """Return a / ℓ."""
        return a * self.inverse_lengthscale().unsqueeze(-2)

    between: Callable[[Tensor, Tensor], Tensor]
    """The kernel of all pairs of :meth:`scaled` points, ``(..., H, N, M)``."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the kernel of all pairs, ``(..., H, N, M)``."""
        scaled = self.scaled(a)
        return self.between(scaled, scaled if b is a else self.scaled(b))


class ARD(ScaledKernel):
    """σ² exp(−½ Σ_i (a_i − b_i)² / ℓ_i²), the kernel for images (CGP paper, section 5.1)."""

    def between(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the kernel of all pairs of scaled points, ``(..., H, N, M)``."""
        return kernels.rbf(a, b, self.log_variance)

    def diagonal(self, a: Tensor) -> Tensor:
        """Return the kernel of each scaled point with itself, ``(..., H, N)``."""
        return self.variance.unsqueeze(-1).expand(a.shape[:-1])


class Exponential(ScaledKernel):
    """σ² exp(Σ_i a_i b_i / ℓ_i²), the kernel for text (CGP paper, section 5.1)."""

    @staticmethod
    def initial_square(head_dim: int) -> float:
        """Return the initial ℓ², with which the scale is softmax's 1/√d."""
        return head_dim**0.5

    def between(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the kernel of all pairs of scaled points, ``(..., H, N, M)``."""
        return self.variance[:, None, None] * kernels.exponential(a, b)

    def diagonal(self, a: Tensor) -> Tensor:
        """Return the kernel of each scaled point with itself, ``(..., H, N)``."""
        return self.variance.unsqueeze(-1) * a.square().sum(-1).exp()


Kernel = RBF | ARD | Exponential
KERNELS: dict[str, type[Kernel]] = {"rbf": RBF, "ard": ARD, "exponential": Exponential}


def resolve(
    name: str,
    heads: int,
    head_dim: int,
    *,
    variance: float = 1.0,
) -> Kernel:
    """Return the kernel of that name in :data:`KERNELS`, with an initial σ².

    Raises:
        ValueError: an unknown name; a variance that is not positive, or not 1 for ``"rbf"``.
    """
    check_choice("kernel", name, KERNELS)
    return KERNELS[name](heads, head_dim, variance=variance)
