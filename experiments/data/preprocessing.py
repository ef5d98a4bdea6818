"""Preprocessing of a run, and JSON files that are written whole or not at all.

The file ``preprocessing.json`` in a run's folder holds what turns new inputs into those of its network, and the names
of its classes.

=========  =========================================================================================================
``kind``   keys besides ``classes``
=========  =========================================================================================================
images     ``shape`` (C, H, W), ``mean`` and ``std`` per channel of pixels in 0..1
texts      ``tokens`` (see ``to_json`` of the tokenizer of words and of the encoders)
table      ``columns`` (see :class:`~probattn.experiments.data.tables.encoding.TableEncoding`), ``label_column``, and
           for regression, where ``classes`` is empty, ``label_mean`` and ``label_std`` of the training labels
=========  =========================================================================================================
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probattn.experiments.data.errors import DatasetError
from probattn.inference.io.files import write_bytes

PREPROCESSING = "preprocessing.json"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object atomically."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode(), tag="part")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise DatasetError if it is missing or damaged."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise DatasetError(f"{path} is missing or damaged ({error}); restore it, or resume the run") from error
