"""Numerical errors: raised with the layer's name, or recorded on the device where the host must not wait for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from probattn.thread_values import ThreadValue

_WHERE = ThreadValue("")
_FAILURES: ThreadValue[list[Tensor] | None] = ThreadValue(None)


class NumericalError(ArithmeticError):
    """A NaN, an Inf, or a matrix that is not positive definite with the largest jitter; the message names the layer."""


@contextmanager
def located(where: str) -> Iterator[None]:
    """Name the layer in errors and warnings raised inside."""
    with _WHERE.replaced(where):
        yield


@contextmanager
def deferred() -> Iterator[list[Tensor]]:
    """Record failures as flags on the device instead of raising, as CUDA graphs and exported programs need.

    Every matrix gets the smallest jitter, needed or not; what would be an error, or need a larger jitter, sets a flag.

    Yields:
        the list of flags, boolean scalars on the device, True where something failed.
    """
    flags: list[Tensor] = []
    with _FAILURES.replaced(flags):
        yield flags


def gathered() -> list[Tensor] | None:
    """Return the list of flags of :func:`deferred`, or None outside."""
    return _FAILURES.value


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
    where = _WHERE.value
    return f"{where}: {name}" if where else name
