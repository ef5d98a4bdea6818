"""Numerics without branches on values, which ``torch.export`` cannot record."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pyro
import torch
from torch import Tensor

from probattn.functional import errors, jitter, ksvd


@contextmanager
def branch_free() -> Iterator[None]:
    """Replace functions of the numerics by ones that branch on no value, and on no length of a text.

    This replaces functions of modules, so it holds for the networks that other threads call meanwhile, too.
    """
    with (
        pyro.validation_enabled(False),
        patch.object(errors, "refuse", lambda failed, error: None),
        patch.object(errors, "check_finite", lambda x, name: x),
        patch.object(ksvd, "masked_rows", lambda tokens, count: count),  # one program for all lengths
        patch.object(jitter, "cholesky", branch_free_cholesky),
    ):
        yield


def branch_free_cholesky(matrix: Tensor, name: str, scale: Tensor | None = None) -> Tensor:
    """Return the Cholesky factor; where it fails, that with the middle jitter; where that fails too, NaN.

    Args:
        matrix, name, scale: as for :func:`probattn.functional.jitter.cholesky`.
    """
    _, failed = jitter.try_cholesky(matrix)
    shares = jitter.JITTERS[matrix.dtype]
    share = shares[len(shares) // 2] * jitter.positive_scale(matrix, scale) * failed
    factor, failed = jitter.try_cholesky(jitter.with_jitter(matrix, share))
    return factor.masked_fill(failed[..., None, None], torch.nan)
