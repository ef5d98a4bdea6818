"""Independent noise at every token, where the leading directions of the attention kernel do not reach."""

from torch import Tensor

from probattn.functional import dtypes, jitter, subspace


def scale(query_key: Tensor, mask: Tensor | None, weights: tuple[Tensor, Tensor], pair: str, *, solved: bool) -> Tensor:
    """Return √(r₁ + r₂), r the residual variances of the two branches, ``(..., H, N)``, positive.

    A jitter, relative to the largest square of a cosine, bounds the gradient of the root where nothing is left out.

    Args:
        query_key: ``(2, ..., H, N, d)``.
        mask: ``(batch, N)``, True where there is a token.
        weights: W_e and W_r, ``(..., H, d, s)``.
        pair: the two branches, of ``"e"`` and ``"r"``.
        solved: the weights are those of ``projection="svd"``
            (see :func:`~probattn.functional.subspace.residual_variances`).
    """
    phi = subspace.features(query_key, mask)
    precise = map(dtypes.at_least_float32, weights)
    variances = subspace.residual_variances(phi, subspace.grams(phi), *precise, solved=solved)
    total = sum(variances["er".index(branch)] for branch in pair)
    return (total + jitter.JITTERS[total.dtype][0]).sqrt()
