"""Types of settings, and their validation by pydantic with errors of one readable line."""

import re
from collections.abc import Iterable
from functools import partial

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from probattn.experiments.data.errors import unknown_name
from probattn.experiments.data.option_types import Count as Count
from probattn.experiments.data.option_types import Seed as Seed

# Decorator of the classes of settings: no unknown keys, finite numbers.
setting = partial(
    dataclass, frozen=True, kw_only=True, config=ConfigDict(extra="forbid", allow_inf_nan=False)
)


class SettingsError(ValueError):
    """An unknown preset or key, or an invalid value."""


class MissingCodeError(SettingsError):
    """A layer, likelihood or data set of the user's own that cannot be imported here."""


def unknown(kind: str, name: str, known: Iterable[str], *, listing: str) -> SettingsError:
    """Return the error of an unknown name; arguments as for
    :func:`~probattn.experiments.data.errors.unknown_name`."""
    return SettingsError(unknown_name(kind, name, known, listing=listing))


def naming(text: str, **parts: Iterable[str]) -> str:
    """Return an error's text after the settings whose names it has, such as ``layer.rank``.

    Args:
        text: of the error.
        parts: names of the settings of each part.
    """
    words = set(re.findall(r"\w+", text))
    found = [f"{part}.{name}" for part, names in parts.items() for name in names if name in words]
    return f"{', '.join(found)}: {text}" if found else text


def validation_error(part: str, error: ValidationError, names: Iterable[str] = ()) -> SettingsError:
    """Return an error of one line: each wrong key of a part of the settings, what is allowed, and
    its value; ``names`` are those of the part's settings."""
    problems = []
    for problem in error.errors():
        key = ".".join(map(str, (part, *problem["loc"])))
        text = problem["msg"].removeprefix("Value error, ")
        value = "" if problem["type"] == "missing" else f", got {problem['input']!r:.99}"
        if problem["loc"]:
            problems.append(f"{key}: {text[0].lower()}{text[1:]}{value}")
        else:
            problems.append(naming(text, **{part: names}))
    return SettingsError("; ".join(problems))
