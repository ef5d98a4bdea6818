"""Modules of Pyro programs: models under handlers such as ``pyro.condition``, and what the library reads from them."""

from typing import Any

import torch

from probattn.guides import Program, unwrapped


def attribute(model: Program, name: str) -> Any:
    """Return an attribute of a model, or of the first module in it that has it, else None."""
    owners = (part for part in unwrapped(model).modules() if hasattr(part, name))
    return getattr(next(owners, None), name, None)


def device(model: Program) -> torch.device | None:
    """Return the device of a model's first parameter, or None without parameters."""
    parameter = next(unwrapped(model).parameters(), None)
    return None if parameter is None else parameter.device
