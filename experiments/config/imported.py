"""Classes and functions of the user's own, named ``package.module:object``, or brought by packages."""

import importlib
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from probattn.experiments.config.validation import SettingsError, unknown

# Groups of entry points by which packages bring objects: ``name = "package.module:object"``.
GROUPS = {"layer": "probattn.layers", "likelihood": "probattn.likelihoods", "data set": "probattn.datasets"}


def find_object(kind: str, name: str, known: Iterable[str]) -> Any:
    """Import the object ``package.module:object``, also from the working directory, or one that a package brings.

    Args:
        kind: key of :data:`GROUPS`.
        name: name of the object.
        known: names of this library's objects, for the error.

    Raises:
        SettingsError: an unknown name, or an object that cannot be imported.
    """
    brought = {entry.name: entry.value for entry in entry_points(group=GROUPS[kind])}
    if ":" not in name and name not in brought:
        raise unknown(kind, name, [*known, *brought], listing="your own is package.module:NAME")
    module, _, attribute = brought.get(name, name).partition(":")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise SettingsError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
