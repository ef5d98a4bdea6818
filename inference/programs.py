"""Access to parts of Pyro programs, of models under handlers such as ``pyro.condition``, and of
results."""

from typing import Any, TypeVar

import torch

from probattn.guides import Program, module_of

T = TypeVar("T")


def attribute(model: Program, name: str) -> Any:
    """Return an attribute of a model, or of the first module in it that has it, else None."""
    owners = (module for module in module_of(model).modules() if hasattr(module, name))
    return getattr(next(owners, None), name, None)


def device(model: Program) -> torch.device | None:
    """Return the device of a model's first parameter, or None without parameters."""
    parameter = next(module_of(model).parameters(), None)
    return None if parameter is None else parameter.device


def required(value: T | None) -> T:
    """Return a value that is not None.

    Raises:
        ValueError: it is None.
    """
    if value is None:
        raise ValueError(
            "a value that is needed here is None: was a part left out, such as a predictor or a "
            "folder?"
        )
    return value
