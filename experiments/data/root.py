"""The root folder of all data sets."""

import os
from pathlib import Path

from probattn.experiments.data.errors import DatasetError

Root = str | os.PathLike[str] | None


def data_root(root: Root) -> Path:
    """Return the root folder of the data sets: ``root``, else ``$PROBATTN_DATA``, else ``data``.

    Raises:
        DatasetError: it is a file.
    """
    folder = Path(root or os.environ.get("PROBATTN_DATA") or "data").expanduser()
    if folder.is_file():
        raise DatasetError(f"{folder} is a file; --data is the folder of the data sets for this preset")
    return folder
