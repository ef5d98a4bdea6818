"""Types of settings, and their validation by pydantic with errors of one readable line."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from probattn.experiments.data.errors import unknown_name
from probattn.inference.training.options import MAX_COUNT, MAX_SEED

# Decorator of the classes of settings: no unknown keys, finite numbers.
setting = partial(
    dataclass, frozen=True, kw_only=True, config=ConfigDict(extra="forbid", allow_inf_nan=False)
)

# Type of a number of things; larger ones are mistakes, and do not fit the integers of PyTorch.
Count = Annotated[int, Field(gt=0, le=MAX_COUNT)]
# Type of a seed of PyTorch's generators.
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]


def _columns(names: Any) -> Any:
    """Split a text with commas between names of columns."""
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else names


# Type of what separates the columns of a file.
Delimiter = Annotated[str, Field(min_length=1, max_length=1)]
# Type of names of columns, as a list or with commas between them.
Columns = Annotated[tuple[str, ...], BeforeValidator(_columns)]


class SettingsError(ValueError):
    """An unknown preset or key, or an invalid value."""


def unknown(kind: str, name: str, known: Iterable[str], *, listing: str) -> SettingsError:
    """Return the error of an unknown name; arguments as for
    :func:`~probattn.experiments.data.errors.unknown_name`."""
    return SettingsError(unknown_name(kind, name, known, listing=listing))


def validation_error(part: str, error: ValidationError) -> SettingsError:
    """Return an error of one line: each wrong key of a part of the settings, what is allowed, and
    its value."""
    problems = []
    for problem in error.errors():
        key = ".".join(map(str, (part, *problem["loc"])))
        text = problem["msg"].removeprefix("Value error, ")
        value = "" if problem["type"] == "missing" else f", got {problem['input']!r:.99}"
        problems.append(f"{key}: {text[0].lower()}{text[1:]}{value}" if problem["loc"] else text)
    return SettingsError("; ".join(problems))
