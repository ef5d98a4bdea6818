"""Kernel attention: a kernel matrix in place of the softmax."""

from typing import Literal

from torch import Tensor, nn

from probattn.attention import kernels
from probattn.attention.base import ProbabilisticAttention
from probattn.functional import errors, padding


class KernelAttention(ProbabilisticAttention):
    """Kernel attention, 𝒦_qk V in each head (CGP paper, eq. 6; Tsai et al., 2019). It has no latent
    sites.

    The weights are not normalised: the sum runs over all real tokens, as in the paper. Initially
    the kernel is neither constant nor diagonal: between the projections of two independent
    LayerNorm'ed tokens ‖(q − k)/ℓ‖² is 1 on average (for ``"exponential"`` q·k/ℓ² has the scale of
    softmax attention).

    Args:
        dim: width of the tokens.
        heads: number of heads; must divide ``dim``.
        kernel: ``"rbf"``, the CGP paper's κ_o without parameters; ``"ard"`` or ``"exponential"``,
            as in its baselines.
        symmetric: share the weights of queries and keys, W_q = W_k.
        variance: initial σ² of ``"ard"`` and ``"exponential"``; with 1 / (number of tokens), 𝒦V
            initially has the scale of a value.
        bias: give query, key and value a bias.

    Raises:
        ValueError: an unknown kernel, or a variance that does not fit it.
    """

    signed = ("kernel", "symmetric")

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kernel: Literal["rbf", "ard", "exponential"] = "rbf",
        symmetric: bool = False,
        variance: float = 1.0,
        bias: bool = False,
    ) -> None:
        super().__init__(dim, heads)
        self.kernel = kernels.resolve(kernel, heads, self.head_dim, variance=variance)
        self.gain = self.kernel.gain
        self.add_projections(symmetric=symmetric, bias=bias)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend over the real tokens.

        Args:
            x: ``(*draws, batch, tokens, dim)``.
            mask: ``(batch, tokens)``, True where there is a token.

        Returns:
            A tensor of x's shape.

        Raises:
            ValueError: x or mask of another shape.
            NumericalError: NaN or Inf in x, or a kernel that overflows.
        """
        query, key, value = self.project(self.checked(x, mask))
        with self.precise():
            attended = padding.columns(self.kernel(query, key), mask) @ value
            errors.check_finite(attended, "kernel attention 𝒦_qk V")
        return self.from_heads(attended)

    def attention_matrix(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return 𝒦_qk ``(..., H, N, N)``, zero in the columns of padded keys; arguments and errors
        as for the layer."""
        query, key, _ = self.project(self.checked(x, mask))
        with self.precise():
            matrix = padding.columns(self.kernel(query, key), mask)
            return errors.check_finite(matrix, "kernel matrix 𝒦_qk")
