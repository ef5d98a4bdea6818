"""Classes of settings that are derived from constructors: their options, defaults and meanings are declared there."""

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.dataclasses import dataclass

from probattn.experiments.config.validation import CONFIG, SettingsError

PLAIN = (bool, int, float, str, NoneType)
"""Types of values that settings hold, besides literals, and tuples and dictionaries of them."""
ARGUMENT = re.compile(r"^([\w, ]+):(?: |$)(.*)")


def settings_class(
    name: str,
    base: type,
    *constructors: Callable[..., Any],
    leave_out: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> type:
    """Return a frozen data class with the options of constructors, of which later ones may repeat a name.

    An option without a default is required. Options that no file of settings can hold, such as modules, keep the
    constructor's default.

    Args:
        name: name of the class.
        base: data class whose fields come first.
        constructors: classes or functions.
        leave_out: parameters that are no settings.
        defaults: defaults in place of the constructors'.

    Raises:
        SettingsError: a parameter without a default that no file of settings can hold.
    """
    annotations: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for constructor in constructors:
        for parameter in inspect.signature(constructor).parameters.values():
            if parameter.name in leave_out or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            annotation = plain(_annotation(constructor, parameter))
            if annotation not in (None, NoneType):
                annotations[parameter.name] = annotation
                values |= {} if parameter.default is parameter.empty else {parameter.name: parameter.default}
            elif parameter.default is parameter.empty:
                title = getattr(constructor, "__name__", constructor)
                raise SettingsError(f"{title}: {parameter.name} has no default, and settings cannot hold its type")
    values |= defaults or {}
    annotations = {
        option: get_type_hints(base, include_extras=True)[option] for option in values if option not in annotations
    } | annotations
    texts = meanings(base) | {key: text for each in constructors for key, text in meanings(each).items()}
    derived = type(
        name, (base,), {"__annotations__": annotations, "__doc__": base.__doc__, **values, "meanings": texts}
    )
    return dataclass(derived, frozen=True, kw_only=True, config=CONFIG)


def _annotation(constructor: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter: its annotation, or without one the type of its default."""
    if parameter.annotation is parameter.empty:
        return type(parameter.default)
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    function = constructor.__init__ if inspect.isclass(constructor) else constructor
    try:
        return eval(parameter.annotation, inspect.unwrap(function).__globals__)  # `from __future__ import annotations`
    except NameError:  # imported for type checkers only
        return None


def plain(annotation: Any) -> Any:
    """Return the part of a type whose values settings can hold; None if there is none."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation in PLAIN or origin is Literal:
        return annotation
    if origin in (Union, UnionType):
        held = [each for each in map(plain, parts) if each is not None]
        return Union[tuple(held)] if any(each is not NoneType for each in held) else None  # noqa: UP007
    if origin in (tuple, list, dict) and all(each is Ellipsis or plain(each) is not None for each in parts):
        return annotation
    return None


def choices(annotation: Any) -> list[str]:
    """Return the values that a type takes if it takes only some."""
    if get_origin(annotation) is Literal:
        return list(map(str, get_args(annotation)))
    if annotation is bool:
        return ["true", "false"]
    return list(dict.fromkeys(value for part in get_args(annotation) for value in choices(part)))


def meanings(described: Callable[..., Any]) -> dict[str, str]:
    """Return the texts of the section ``Args`` of a docstring, of a class also those of its bases, by parameter."""
    if inspect.isclass(described):
        known: dict[str, str] = {}
        for kind in reversed(described.__mro__):
            known |= _arguments(kind.__dict__.get("__doc__"))
        return known
    return _arguments(described.__doc__)


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring's text, without its markup."""
    plain_text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "")
    return re.split(r"(?<=[^.])\.(?: |$)|; ", plain_text)[0].strip()


def _arguments(docstring: str | None) -> dict[str, str]:
    _, _, section = inspect.cleandoc(docstring or "").partition("Args:\n")
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        if line and not line.startswith("    "):
            break
        if not line.startswith("     ") and (match := ARGUMENT.match(line.strip())):
            names = match[1].split(", ")
            texts |= dict.fromkeys(names, match[2])
        else:
            texts |= {name: f"{texts[name]} {line.strip()}".strip() for name in names}
    return texts
