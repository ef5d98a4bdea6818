"""Checks of the batches of a prediction on a GPU, whose results are read once, after the last batch."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import is_dependent

from probattn.inference.prediction.stacked_likelihood import Stacked


class LateChecks:
    """Flags on the device, each with the number of its batch; the host does not wait for them before the end.

    Args:
        device: the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flags: list[Tensor] = []
        self._where: list[tuple[str, int]] = []

    def add(self, flag: Tensor, what: str, batch: int) -> None:
        """Add a boolean scalar, True if a batch's inputs or outputs are wrong."""
        self._flags.append(flag.to(self._device, non_blocking=True))
        self._where.append((what, batch))

    def first_failure(self) -> tuple[str, int] | None:
        """Wait for the device; return what was wrong first, and in which batch."""
        failed = torch.stack(self._flags).tolist() if self._flags else []
        return next((where for where, flag in zip(self._where, failed, strict=True) if flag), None)


def invalid_arguments(likelihood: Distribution) -> list[Tensor]:
    """Return boolean scalars, True where PyTorch's validation would refuse a parameter of the distribution.

    Args:
        likelihood: built without validation.
    """
    return [~holds for each in _inner(likelihood) for holds in _conditions(each)]


def _inner(likelihood: Distribution) -> Iterator[Distribution]:
    """Yield a distribution and those it is made of."""
    yield likelihood
    if isinstance(likelihood, Stacked):
        for part in likelihood.parts:
            yield from _inner(part)
    inner = getattr(likelihood, "base_dist", None)
    if isinstance(inner, Distribution):
        yield from _inner(inner)


def _conditions(distribution: Distribution) -> Iterator[Tensor]:
    for name, constraint in distribution.arg_constraints.items():
        value = vars(distribution).get(name)
        if isinstance(value, Tensor) and not is_dependent(constraint):
            yield constraint.check(value).all()
