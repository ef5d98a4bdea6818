"""Files that their authors pickled, read without running what they name."""

import pickle
from pathlib import Path
from typing import Any

from probattn.experiments.data.images.images import DatasetError

_KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),  # bytes, where Python 3 wrote an old protocol
}


class _Arrays(pickle.Unpickler):
    """Builds numbers, texts, lists, dicts and arrays; any other class or function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, and arrays alone are read")
        return super().find_class(module, name)


def read_arrays(path: Path) -> Any:
    """What a pickle of numbers, texts, lists, dicts and arrays holds; the texts of Python 2 as Latin-1.

    Raises:
        DatasetError: it holds something else, or is damaged.
    """
    with path.open("rb") as file:
        try:
            return _Arrays(file, encoding="latin1").load()
        except Exception as error:  # damage shows in many ways
            raise DatasetError(f"cannot read {path.absolute()}: {error}") from error
