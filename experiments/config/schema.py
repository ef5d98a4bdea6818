"""Constructors, also of the user's own, and the classes of settings that are derived from them."""

import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import distributions
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import nn

import probattn
from probattn.experiments.config.validation import (
    Count,
    MissingCodeError,
    SettingsError,
    setting,
    unknown,
)
from probattn.experiments.data.errors import UntrustedCodeError

# Groups of entry points by which packages bring objects: ``name = "package.module:object"``.
GROUPS = {
    "layer": "probattn.layers",
    "likelihood": "probattn.likelihoods",
    "data set": "probattn.datasets",
}
# Which names of a folder may be imported that are not this library's: all, none, or those that the
# user has typed.
Trust = bool | Collection[str]
# Types of values that settings hold, besides literals, and tuples and dictionaries of them.
PLAIN = (bool, int, float, str, NoneType)
# Kinds of parameters that stand for any number of arguments.
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# An entry of the section ``Args``: names, and a text whose further lines are indented.
ARGUMENT = re.compile(r"^    (\w[\w, ]*):(.*(?:\n     .*)*)", re.MULTILINE)
# A text that refers to that of a layer of this library.
REFERENCE = re.compile(r"as for :class:`(\w+)`")


def find_object(kind: str, name: str, known: Iterable[str]) -> Any:
    """Import the object ``package.module:object``, also from the working directory, or one that a
    package brings.

    Args:
        kind: key of :data:`GROUPS`.
        name: name of the object, which the user has typed or trusts (:func:`check_trusted`).
        known: names of this library's objects, for the error.

    Raises:
        MissingCodeError: an object that cannot be imported.
        SettingsError: an unknown name, or an object of another type.
    """
    brought = _brought(kind)
    if ":" not in name and name not in brought:
        raise unknown(kind, name, [*known, *brought], listing="your own is package.module:NAME")
    module, _, attribute = brought.get(name, name).partition(":")
    folder = str(Path.cwd())
    if name not in brought and folder not in sys.path:
        sys.path.append(folder)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise MissingCodeError(
            f"the {kind} {name} cannot be imported: {type(error).__name__}: {error}; install what "
            f"it needs, or go to the folder that {module.partition('.')[0]} lies in"
        ) from error
    if kind == "data set":
        is_expected = inspect.isfunction(found)
    else:
        is_expected = inspect.isclass(found) and issubclass(found, nn.Module)
    if not is_expected:
        expected = "a function" if kind == "data set" else "a class of torch.nn.Module"
        raise SettingsError(f"{name} is no {kind}: it must be {expected}")
    return found


def check_trusted(
    kind: str, name: Any, known: Collection[str], *, trust_code: Trust, where: Path
) -> None:
    """Check that a name in a folder may be imported; nothing is imported here.

    Args:
        kind: key of :data:`GROUPS`.
        name: what the folder names.
        known: names of this library's objects.
        trust_code: which other names are trusted. Those that installed packages bring always are.
        where: the folder, for the error.

    Raises:
        UntrustedCodeError: the name is not trusted.
    """
    typed = () if isinstance(trust_code, bool) else trust_code
    is_name = isinstance(name, str)
    if not is_name or not (
        trust_code is True or name in known or name in typed or name in _brought(kind)
    ):
        raise UntrustedCodeError(
            f"{where} names the {kind} {name!r}, which is not this library's and could run any "
            "code; "
            "if you trust who made it, add --trust-code (in Python trust_code=True)"
        )


def _brought(kind: str) -> dict[str, str]:
    """Return what installed packages bring, by name; files in the working directory install
    nothing."""
    folders = [folder for folder in sys.path if Path(folder).resolve() != Path.cwd()]
    entries = (entry for package in distributions(path=folders) for entry in package.entry_points)
    return {entry.name: entry.value for entry in entries if entry.group == GROUPS[kind]}


def settings_class(
    title: str,
    base: type,
    /,
    *constructors: Callable[..., Any],
    leave_out: Collection[str] = (),
    **defaults: Any,
) -> type:
    """Return a frozen data class with the options of constructors, of which later ones may repeat a
    name.

    An option without a default is required; if it is an integer, it is a size of at least 1.
    Options that no file of settings can hold, such as modules, keep the default. Attributes of the
    class are the first constructor, ``constructor``, and the texts of its options, ``meanings``.

    Args:
        title: name of the class.
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
        for name, parameter in inspect.signature(constructor, eval_str=True).parameters.items():
            default = parameter.default
            annotation = parameter.annotation
            is_required = default is parameter.empty
            is_untyped = annotation is parameter.empty
            annotation = plain(type(default) if is_untyped else annotation)
            if name in leave_out or parameter.kind in VARIABLE:
                continue
            if annotation not in (None, NoneType):
                is_size = annotation is int and is_required
                annotations[name] = Count if is_size else annotation
            elif is_required:
                problem = "has no default, and settings cannot hold its type"
                raise SettingsError(f"{title}: {name} {problem}")
            if name in annotations and not is_required:
                values[name] = default
    values |= defaults
    of_base = get_type_hints(base, include_extras=True)
    texts = dict[str, str]()
    for option in values.keys() - annotations.keys():
        annotations[option] = of_base[option]
    for described in (*map(meanings, constructors), meanings(base)):
        texts |= described
    about = {"constructor": constructors[0], "meanings": texts, "__doc__": base.__doc__}
    content = {"__annotations__": annotations, **values, **about}
    return setting()(type(title, (base,), content))


def options_of(constructor: Callable[..., Any], settings: Any) -> dict[str, Any]:
    """Return those of the settings that are parameters of a constructor."""
    parameters = inspect.signature(constructor).parameters
    return {name: value for name, value in vars(settings).items() if name in parameters}


def plain(annotation: Any) -> Any:
    """Return the part of a type whose values settings can hold; None if there is none."""
    origin = get_origin(annotation)
    parts = get_args(annotation)
    if annotation in PLAIN or origin in (Literal, Annotated):
        return annotation
    if origin in (Union, UnionType):
        usable = [member for member in map(plain, parts) if member is not None]
        if all(member is NoneType for member in usable):
            return None
        return Union[tuple(usable)]  # noqa: UP007
    is_plain = origin in (tuple, list, dict) and all(
        entry is Ellipsis or plain(entry) is not None for entry in parts
    )
    return annotation if is_plain else None


def choices(annotation: Any) -> list[str]:
    """Return the values that a type takes if it takes only some."""
    if get_origin(annotation) is Literal:
        return list(map(str, get_args(annotation)))
    if annotation is bool:
        return ["true", "false"]
    values = itertools.chain.from_iterable(map(choices, get_args(annotation)))
    return list(dict.fromkeys(values))


def meanings(described: Callable[..., Any]) -> dict[str, str]:
    """Return the texts of the section ``Args`` of a docstring, of a class also those of its bases,
    by parameter."""
    sources = reversed(described.__mro__) if inspect.isclass(described) else (described,)
    texts = dict[str, str]()
    for source in sources:
        document = inspect.cleandoc(source.__doc__ or "")
        section = document.partition("Args:\n")[2].partition("\n\n")[0]
        for names, text in ARGUMENT.findall(section):
            text = " ".join(text.split())
            reference = REFERENCE.match(text)
            layer = getattr(probattn, reference[1], None) if reference else None
            of_layer = {} if layer is None else meanings(layer)
            for name in names.split(", "):
                texts[name] = of_layer.get(name, text)
    return texts


def unmarked(text: str) -> str:
    """Return a docstring's text without its markup."""
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "")
