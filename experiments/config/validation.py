"""Validation of settings by pydantic, with errors of one readable line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError

from probattn.inference.training.options import MAX_COUNT, MAX_SEED

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Configuration of the settings classes: no unknown keys, no conversion between types, finite numbers."""

Count = Annotated[int, Field(gt=0, le=MAX_COUNT)]
"""Type of a number of things; larger ones are mistakes, and do not fit the integers of PyTorch."""
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
"""Type of a seed of PyTorch's generators."""
Share = Annotated[float, Field(ge=0, lt=1)]
"""Type of a dropout rate."""
Positive = Annotated[float, Field(gt=0)]
"""Type of a standard deviation."""


class SettingsError(ValueError):
    """An unknown preset or key, or an invalid value."""


@contextmanager
def readable_errors(key: str | None = None) -> Iterator[None]:
    """Turn validation errors into a :class:`SettingsError` of one line: each key, what is allowed, and its value.

    Args:
        key: key of the validated value; by default the location that pydantic reports.
    """
    try:
        yield
    except ValidationError as error:
        problems = (
            _problem(key or _key(each["loc"]), each["type"], each["msg"], each["input"]) for each in error.errors()
        )
        raise SettingsError("; ".join(problems)) from error
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _key(location: tuple[str | int, ...]) -> str:
    """Return the dotted key of a location, without the kind of the data, the layer or the network."""
    names = list(location[1:] if location[:1] == ("settings",) and len(location) > 1 else location)
    if names[:1] in (["data"], ["layer"], ["network"]):
        del names[1:2]
    return ".".join(map(str, names[:2]))


def _problem(key: str, kind: str, message: str, value: object) -> str:
    own = message.removeprefix("Value error, ")  # raised by our classes
    message = own if kind == "value_error" else message[0].lower() + message[1:]
    if not key:
        return message
    return f"{key}: {message}" if isinstance(value, dict) else f"{key}: {message}, got {value!r}"
