"""Numerical errors: raised with the layer's name, or recorded on the device where the host must not wait for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor


class ThreadValue:
    def __init__(self, value):
        self._v = ContextVar("v", default=value)

    @property
    def value(self):
        return self._v.get()

    @contextmanager
    def replaced(self, value):
        token = self._v.set(value)
        try:
            yield
        finally:
            self._v.reset(token)

    def __class_getitem__(cls, item):
        return cls


_WHERE = ThreadValue("")


class NumericalError(ArithmeticError):
    """A NaN, an Inf, or a matrix that is not positive definite with the largest jitter; the message names the layer."""


class Failures:
    """Outcome of several checks as one flag on the device.

    One tensor, since code that appends to a list is compiled anew for each length of the list.

    Attributes:
        flag: boolean scalar, True if anything failed; None before anything was recorded.
    """

    def __init__(self) -> None:
        self.flag: Tensor | None = None

    def add(self, failed: Tensor) -> None:
        """Record whether any entry of a boolean tensor is True."""
        failed = failed.any()
        self.flag = failed if self.flag is None else self.flag | failed


_FAILURES: ThreadValue[Failures | None] = ThreadValue(None)


@contextmanager
def located(where: str) -> Iterator[None]:
    """Name the layer in errors and warnings raised inside."""
    with _WHERE.replaced(where):
        yield


@contextmanager
def deferred() -> Iterator[Failures]:
    """Record failures on the device instead of raising, as CUDA graphs and exported programs need.

    Every matrix gets the smallest jitter, needed or not. What would be an error or need a larger jitter sets the flag.
    """
    failures = Failures()
    with _FAILURES.replaced(failures):
        yield failures


def recorded_failures() -> Failures | None:
    """Return what :func:`deferred` records, or None outside."""
    return _FAILURES.value


def refuse(failed: Tensor, error: Callable[[list[int]], Exception]) -> None:
    """Raise an error if any entry failed; under :func:`deferred`, record it instead.

    Args:
        failed: boolean, ``(rows, ...)``.
        error: builds the error from the rows of all entries that failed.
    """
    failures = recorded_failures()
    if failures is not None:
        failures.add(failed)
    elif failed.any():
        raise error(failed.nonzero()[:, 0].tolist())


def check_finite(x: Tensor, name: str) -> Tensor:
    """Return x if it is finite.

    Raises:
        NumericalError: a NaN or Inf in x.
    """
    refuse(
        ~x.isfinite(), lambda rows: NumericalError(f"{subject(name)}: NaN or Inf in {len(rows)} of {x.numel()} entries")
    )
    return x


def subject(name: str) -> str:
    """Return the name of a matrix, after the name of its layer."""
    where = _WHERE.value
    return f"{where}: {name}" if where else name
