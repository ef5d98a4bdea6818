"""The root folder of all data sets."""

import os
from pathlib import Path

DEFAULT = Path("data")
"""The folder that is used if neither an argument nor ``PROBATTN_DATA`` names another; downloads create it."""


def data_root(root: str | os.PathLike[str] | None) -> Path:
    """Return the root folder of the data sets: ``root``, else ``$PROBATTN_DATA``, else :data:`DEFAULT`."""
    return Path(root or os.environ.get("PROBATTN_DATA") or DEFAULT).expanduser()
