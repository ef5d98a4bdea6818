"""Tables and figures of the papers: CSV files in ``papers``, a line a cell, and the reduced size of their runs."""

from pathlib import Path

import pandas as pd

from probattn.experiments.config.validation import unknown
from probattn.experiments.data.images.corruptions import SEVERITIES

PAPERS = Path(__file__).parent / "papers"
DEFAULT_TRIALS = 3
"""Seeds where the paper does not give its number."""


def entries() -> pd.DataFrame:
    """Return by name the title, source, number of trials, note, and why one is not reproduced."""
    return _read("entries", "name").fillna({"trials": DEFAULT_TRIALS}).astype({"trials": int})


def cells(name: str) -> pd.DataFrame:
    """Return the cells of a table or figure.

    Columns: ``block`` (a part of the table on one data set), ``row``, ``preset``, ``changes`` (of its settings, with
    spaces), ``method``, ``set`` (see :func:`averaged_sets`), ``metric`` (several, whose mean is taken, with ``+``),
    ``title``, ``scale`` (of the paper's unit), ``value`` and ``std`` in that unit, NaN if the paper has none.

    Args:
        name: such as ``kep-svgp/table-1``.

    Raises:
        SettingsError: an unknown entry.
    """
    if name not in entries().index:
        raise unknown("table or figure", name, entries().index, listing="`probattn reproduce --list` lists all")
    return _read(name.partition("/")[0], "entry").query("entry == @name").reset_index()


def averaged_sets(name: str) -> list[str]:
    """Return the sets over which a cell averages: of ``ood/A+ood/B``, ``shift/GROUP``, ``shift/GROUP/SEVERITY``."""
    if not name.startswith("shift/"):
        return name.split("+")
    _, group, *levels = name.split("/")
    corruptions = _read("corruptions", "group")["corruptions"][group].split()
    return [f"shift/{corruption}/{level}" for corruption in corruptions for level in levels or SEVERITIES]


def reduced(preset: str) -> tuple[int, list[str]]:
    """Return the epochs of a run of a preset at reduced size, and the changes of its settings."""
    sizes = _read("reduced", "presets")
    family = next(family for family in sizes.index if f"{preset}-".startswith((f"{family}-", f"{family}/")))
    return int(sizes["epochs"][family]), sizes["changes"][family].split()


def _read(name: str, index: str) -> pd.DataFrame:
    """Return a file's lines; texts may be empty, numbers NaN."""
    numbers = dict.fromkeys(("value", "std", "trials"), "")
    return pd.read_csv(PAPERS / f"{name}.csv", index_col=index, keep_default_na=False, na_values=numbers)
