"""Classes and functions of the user's own, named ``package.module:object``, or brought by packages."""

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from probattn.experiments.config.validation import SettingsError, unknown

GROUPS = {"layer": "probattn.layers", "likelihood": "probattn.likelihoods", "data set": "probattn.datasets"}
"""Groups of entry points by which packages bring objects: ``name = "package.module:object"``."""


def names(kind: str, known: Mapping[str, Any]) -> list[str]:
    """Return the names of this library's objects of a kind, and of those that packages bring."""
    return [*known, *(entry.name for entry in entry_points(group=GROUPS[kind]))]


def find_class(kind: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return the object of that name.

    Args:
        kind: key of :data:`GROUPS`.
        name: name of an object, or ``package.module:object``.
        known: this library's objects.

    Raises:
        SettingsError: an unknown name, or an object that cannot be imported.
    """
    if name in known:
        return known[name]
    if ":" not in name:
        entries = [entry.value for entry in entry_points(group=GROUPS[kind]) if entry.name == name]
        if not entries:
            raise unknown(kind, name, names(kind, known), listing="your own is package.module:NAME")
        name = entries[0]
    return import_object(name)


def import_object(name: str) -> Any:
    """Import an object; modules may also lie in the working directory.

    Args:
        name: ``package.module:object``.

    Raises:
        SettingsError: the module or the object is not there, or importing it fails.
    """
    module, _, attribute = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise SettingsError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
