"""What goes wrong in numbers: raised with its layer's name, or gathered on the device where nothing may wait for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_WHERE: ContextVar[str] = ContextVar("where", default="")
_FAILURES: ContextVar[list[Tensor] | None] = ContextVar("failures", default=None)


class NumericalError(ArithmeticError):
    """A NaN, an Inf, or a matrix that no tolerable jitter makes positive definite; the message names the layer."""


@contextmanager
def located(where: str) -> Iterator[None]:
    """Names the layer in the errors and warnings that are raised inside."""
    token = _WHERE.set(where)
    try:
        yield
    finally:
        _WHERE.reset(token)


@contextmanager
def deferred() -> Iterator[list[Tensor]]:
    """Inside, nothing waits for the device, as a CUDA graph or an exported program needs it.

    Every matrix gets the smallest jitter, whether it needs it or not; what would be an error, or a larger jitter, is
    gathered in the list.

    Yields:
        boolean scalars on the device, True where something failed.
    """
    token = _FAILURES.set([])
    try:
        yield _FAILURES.get()
    finally:
        _FAILURES.reset(token)


def gathered() -> list[Tensor] | None:
    """The list of :func:`deferred`, or None outside."""
    return _FAILURES.get()


def refuse(failed: Tensor, error: Callable[[list[int]], Exception]) -> None:
    """Raises an error where anything has failed; under :func:`deferred` it is only gathered.

    Args:
        failed: boolean, ``(rows, ...)``.
        error: makes the error from the rows of all entries that failed.
    """
    failures = gathered()
    if failures is not None:
        failures.append(failed.any())
    elif failed.any():
        raise error(failed.nonzero()[:, 0].tolist())


def check_finite(x: Tensor, name: str) -> Tensor:
    """x itself.

    Raises:
        NumericalError: a NaN or Inf in x.
    """
    where, size = subject(name), x.numel()
    refuse(~x.isfinite(), lambda rows: NumericalError(f"{where}: NaN or Inf in {len(rows)} of {size} entries"))
    return x


def subject(name: str) -> str:
    """The name of a matrix behind that of its layer."""
    where = _WHERE.get()
    return f"{where}: {name}" if where else name
