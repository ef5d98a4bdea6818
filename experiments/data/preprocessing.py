"""``preprocessing.json`` of a run: what turns new inputs into those of its network, and the names of its classes.

=========  =========================================================================================================
``kind``   keys besides ``classes``
=========  =========================================================================================================
images     ``shape`` (C, H, W), ``mean`` and ``std`` per channel of pixels in 0..1
texts      none; the tokens are in ``tokenizer.json`` or ``encoder.json``
table      ``columns`` (see :class:`~probattn.experiments.data.tables.encoding.TableEncoding`), ``label_column``, and
           for regression, where ``classes`` is empty, ``label_mean`` and ``label_std`` of the training labels
=========  =========================================================================================================
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.sealed_files import read_json, write_json

PREPROCESSING = "preprocessing.json"
"""Name of the file in a run's folder."""


def write_preprocessing(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the file into a run's folder, unless it is there already."""
    if not (folder / PREPROCESSING).exists():
        write_json(folder / PREPROCESSING, dict(content))


def read_preprocessing(folder: Path) -> dict[str, Any]:
    """Read the file of a run.

    Raises:
        DatasetError: the file is missing.
        DamagedFileError: it is damaged.
    """
    try:
        return read_json(folder / PREPROCESSING)
    except FileNotFoundError as error:
        raise DatasetError(f"{folder} lacks {PREPROCESSING}; resume the run, which writes it again") from error
