"""Objects of the user's own, named ``package.module:object``."""

import importlib
import sys
from pathlib import Path
from typing import Any

from probattn.experiments.config.validation import SettingsError


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
    except AttributeError as error:
        raise SettingsError(f"{name}: module {module} has no {attribute!r}") from error
    except Exception as error:
        raise SettingsError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
