"""Numerical errors: raised with the layer's name, or recorded on the device where the host must not wait for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_WHERE: ContextVar[str] = ContextVar("where", default="")
_FAILURES: ContextVar[list[Tensor] | None] = ContextVar("failures", default=None)


class NumericalError(ArithmeticError):
    """A NaN, an Inf, or a matrix that is not positive definite with the largest jitter; the message names the layer."""


@contextmanager
def located(where: str) -> Iterator[None]:
    """Name the layer in errors and warnings raised inside."""
    token = _WHERE.set(where)
    try:
        yield
    finally:
        _WHERE.reset(token)


@contextmanager
def deferred() -> Iterator[list[Tensor]]:
    """Record failures as flags on the device instead of raising, as CUDA graphs and exported programs need.

    Every matrix gets the smallest jitter, needed or not; what would be an error, or need a larger jitter, sets a flag.

    Yields:
        the list of flags, boolean scalars on the device, True where something failed.
    """
    flags: list[Tensor] = []
    token = _FAILURES.set(flags)
    try:
        yield flags
    finally:
        _FAILURES.reset(token)


def gathered() -> list[Tensor] | None:
    """Return the list of flags of :func:`deferred`, or None outside."""
    return _FAILURES.get()


def refuse(failed: Tensor, error: Callable[[list[int]], Exception]) -> None:
    """Raise an error if any entry failed; under :func:`deferred`, record a flag instead.

    Args:
        failed: boolean, ``(rows, ...)``.
        error: builds the error from the rows of all entries that failed.
    """
    failures = gathered()
    if failures is not None:
        failures.append(failed.any())
    elif failed.any():
        raise error(failed.nonzero()[:, 0].tolist())


def check_finite(x: Tensor, name: str) -> Tensor:
    """Return x if it is finite.

    Raises:
        NumericalError: a NaN or Inf in x.
    """
    where, size = subject(name), x.numel()
    refuse(~x.isfinite(), lambda rows: NumericalError(f"{where}: NaN or Inf in {len(rows)} of {size} entries"))
    return x


def subject(name: str) -> str:
    """Return the name of a matrix, after the name of its layer."""
    where = _WHERE.get()
    return f"{where}: {name}" if where else name
