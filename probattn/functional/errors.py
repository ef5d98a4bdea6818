"""Numerical errors, which name the layer that raises them, and the policy of branches on values."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

from probattn.functional.context import bound

_WHERE = ContextVar("where", default="")
_BRANCHES = ContextVar("branches", default=True)
_FAILURES: ContextVar[list[Tensor] | None] = ContextVar("failures", default=None)


class NumericalError(ArithmeticError):
    """A NaN, an Inf, or a matrix that is not positive definite with the largest jitter; the message
    names the layer."""


def located(where: str) -> AbstractContextManager[Any]:
    """Name the layer in errors and warnings raised inside."""
    return bound(_WHERE, where)


def branch_free() -> AbstractContextManager[Any]:
    """Branch on no value and on no length of a text inside, in this thread alone: what would be an
    error is NaN.

    So one program holds for all values, as ``torch.export`` needs.
    """
    return bound(_BRANCHES, False)


def may_branch() -> bool:
    """Return False inside :func:`branch_free`."""
    return _BRANCHES.get()


def deferred() -> AbstractContextManager[Any]:
    """Go on inside as if nothing had failed in the numerics, and list what has, since each look
    waits for the device.

    If any of these scalars is True, what was computed means nothing: compute it again without this.
    """
    return bound(_FAILURES, [])


def refuse(failed: Tensor, error: Callable[[list[int]], Exception]) -> None:
    """Raise an error if any entry failed.

    Args:
        failed: boolean, ``(rows, ...)``.
        error: builds the error from the rows of all entries that failed.
    """
    if is_any(failed):
        raise error(failed.nonzero()[:, 0].tolist())


def is_any(failed: Tensor) -> bool | None:
    """Return True if any entry is True; None in :func:`branch_free` and under ``torch.func.vmap``,
    without a value."""
    if not may_branch():
        return None
    try:
        return bool(failed.any())
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        return None


def has_failed(failed: Tensor) -> bool | None:
    """Return :func:`is_any` of entries that have failed, or False in :func:`deferred`, which lists
    it."""
    failures = _FAILURES.get()
    if failures is None:
        return is_any(failed)
    failures.append(failed.any())
    return False


def check_finite(x: Tensor, name: str) -> Tensor:
    """Return x if it is finite.

    Raises:
        NumericalError: a NaN or Inf in x.
    """
    # A NaN or an Inf makes the sum NaN or Inf, which takes one pass over x.
    if has_failed(~x.detach().sum().isfinite()) and (failed := int((~x.isfinite()).sum())):
        raise NumericalError(f"{subject(name)}: NaN or Inf in {failed} of {x.numel()} entries")
    return x


def subject(name: str) -> str:
    """Return the name of a matrix, after the name of its layer."""
    where = _WHERE.get()
    return f"{where}: {name}" if where else name
