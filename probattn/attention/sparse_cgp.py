"""Sparse correlated Gaussian process attention, linear in the number of tokens."""

from typing import Any

import torch
from torch import Tensor, nn

from probattn.attention.correlated import CorrelatedAttention
from probattn.functional import dtypes, sgpa
from probattn.functional.sparse_cgp import SparseCGP


class SparseCGPAttention(CorrelatedAttention):
    """Sparse CGP attention (Bui et al., UAI 2025, section 4): z_q, z_k depend on z_o through
    inducing inputs Z_m, Z_ℓ.

    As :class:`CGPAttention` with deterministic training conditionals, at O(N m²) a head without an
    N×N matrix; observed is z_k = V (34). The inducing inputs are parameters in the space of the
    latent inputs, for any number of tokens (Remark 4).

    Sites: as :class:`CGPAttention`.

    Args:
        dim: width of the tokens.
        heads: number of heads; must divide ``dim``.
        inducing: m, the number of inducing inputs between z_q and z_o.
        inducing_keys: ℓ, between z_k and z_o; m by default.
        tokens: the number of tokens, if it is fixed; the inducing inputs are then learned mixtures
            of the tokens' latent inputs, as in the authors' code.
        noise, learn_noise, canonical_guide, collapsed, output, alpha, regulariser_norm, bias: as
            for :class:`CGPAttention`.

    Raises:
        ValueError: an invalid option, with the valid ones.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        inducing: int = 16,
        inducing_keys: int | None = None,
        tokens: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dim, heads, **options)
        numbers = (inducing, inducing if inducing_keys is None else inducing_keys)
        if min(numbers) < 1:
            raise ValueError(f"inducing and inducing_keys must be positive, got {numbers}")
        self.tokens = tokens
        if tokens is None:
            std = (0.5 / self.head_dim) ** 0.5  # of the initial entries of X_o
            initial = [std * torch.randn(heads, number, self.head_dim) for number in numbers]
        else:  # mixtures that preserve the variance of the vectors
            initial = [torch.randn(number, tokens) / tokens**0.5 for number in numbers]
        self.inducing = nn.ParameterList([nn.Parameter(points) for points in initial])
        self.remember_placement(is_placed=tokens is not None)

    @torch.no_grad()
    def initialise(self, stream: Tensor) -> None:
        """Set the inducing inputs to the latent inputs of vectors ``(..., dim)`` seen at the start
        of the path."""
        if self.tokens is not None:
            return
        latent = self.latent(self.along_path(stream))
        for points in self.inducing:
            points.copy_(sgpa.pick_of_heads(latent, self.heads, points.shape[1]))

    def law_of(self, **given: Any) -> SparseCGP:
        """Return the joint law with these fields.

        Raises:
            ValueError: another number of tokens, or a mask, where the number is fixed.
        """
        query, key = map(dtypes.at_least_float32, self.inducing)
        if self.tokens is not None:
            latent = given["latent"]
            number = given["latent"].shape[-2]
            if given["real"] is not None or number != self.tokens:
                raise ValueError(
                    f"{self.label} mixes {self.tokens} tokens into inducing inputs and takes no "
                    f"mask, got {number}: leave tokens out where the length varies"
                )
            query = query @ latent
            key = key @ latent
        return SparseCGP(**given, inducing_query=query, inducing_key=key)
