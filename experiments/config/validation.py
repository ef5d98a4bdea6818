"""Validation of settings by pydantic, with errors of one readable line."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError

from probattn.experiments.data.errors import unknown_name
from probattn.inference.training.options import MAX_COUNT, MAX_SEED

# Configuration of the settings' classes: no unknown keys, finite numbers.
CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False)

# Type of a number of things; larger ones are mistakes, and do not fit the integers of PyTorch.
Count = Annotated[int, Field(gt=0, le=MAX_COUNT)]
# Type of a seed of PyTorch's generators.
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]


class SettingsError(ValueError):
    """An unknown preset or key, or an invalid value."""


def unknown(kind: str, name: str, known: Iterable[str], *, listing: str) -> SettingsError:
    """Return the error of an unknown name; arguments as for :func:`~probattn.experiments.data.errors.unknown_name`."""
    return SettingsError(unknown_name(kind, name, known, listing=listing))


def validation_error(part: str, error: ValidationError) -> SettingsError:
    """Return an error of one line: each wrong key of a part of the settings, what is allowed, and its value."""
    return SettingsError("; ".join(_problem(part, **problem) for problem in error.errors()))


def _problem(part: str, *, loc: tuple[str | int, ...], type: str, msg: str, input: object, **_: object) -> str:
    if type == "value_error":
        return msg.removeprefix("Value error, ")
    value = "" if isinstance(input, dict) else f", got {input!r}"
    quoted = "; quote yes, no, true and false in YAML where text is meant" if isinstance(input, bool) else ""
    return f"{'.'.join(map(str, (part, *loc)))}: {msg[0].lower()}{msg[1:]}{value}{quoted}"
