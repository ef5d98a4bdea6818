"""Tables and figures of the papers: their cells, and the runs that give them, which can be resumed.

The CSV files in ``papers`` have a line a cell.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from probattn.experiments.config import presets
from probattn.experiments.config.validation import SettingsError, unknown
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images import ood_sets
from probattn.experiments.data.images.corruptions import SEVERITIES
from probattn.experiments.evaluation.methods import ENSEMBLE, POSTERIOR
from probattn.experiments.studies import study
from probattn.experiments.studies.study import Job

PAPERS = Path(__file__).parent / "papers"
Model = tuple[str, str]
"""Preset and changes of its settings."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Cells of an entry, and the runs that they need, by model."""

    name: str
    title: str
    note: str
    cells: pd.DataFrame
    jobs: dict[Model, list[Job]]


def entries() -> pd.DataFrame:
    """Return by name the title, source, number of trials (3 if the paper has none), note, why one
    is not reproduced."""
    return _read("entries", "name")


def cells_of(name: str) -> pd.DataFrame:
    """Return the cells of a table or figure.

    Columns: ``block`` (a part of the table on one data set), ``row``, ``preset``, ``changes`` (of
    its settings, with spaces), ``method``, ``set`` (see :func:`averaged_sets`), ``metric``
    (several, whose mean is taken, with ``+``), ``title``, ``scale`` (of the paper's unit),
    ``value`` and ``std`` in that unit, NaN if the paper has none.

    Args:
        name: such as ``kep-svgp/table-1``.

    Raises:
        SettingsError: an unknown entry.
    """
    if name not in entries().index:
        raise unknown(
            "table or figure",
            name,
            entries().index,
            listing="`probattn reproduce --list` lists all",
        )
    return _read(name.partition("/")[0], "entry").query("entry == @name").reset_index()


def averaged_sets(name: str) -> list[str]:
    """Return the sets over which a cell averages: of ``ood/A+ood/B``, ``shift/GROUP``,
    ``shift/GROUP/SEVERITY``."""
    if not name.startswith("shift/"):
        return name.split("+")
    _, group, *levels = name.split("/")
    corruptions = _read("corruptions", "group")["corruptions"][group].split()
    pairs = itertools.product(corruptions, levels or SEVERITIES)
    return [f"shift/{corruption}/{level}" for corruption, level in pairs]


def models(cells: pd.DataFrame) -> list[Model]:
    """Return preset and changes of the models of some cells."""
    return list(cells[["preset", "changes"]].drop_duplicates().itertuples(index=False, name=None))


def data_names(cells: pd.DataFrame) -> list[str]:
    """Return the names of the data sets and OOD sets of some cells."""
    names = []
    for name, changes in models(cells):
        settings = presets.preset(name).with_changes(changes.split())
        names.append(settings.data.name)
    return list(dict.fromkeys([*names, *_options(cells)["ood"]]))


def plan(
    name: str,
    *,
    out: Path,
    only: Sequence[str] = (),
    seeds: int | None = None,
    data: Path | None = None,
    changes: Sequence[str] = (),
) -> Plan:
    """Plan the runs of an entry, in ``OUT/runs``, which entries share.

    Args:
        name: such as ``kep-svgp/table-1``.
        out: folder of all results.
        only: presets whose models are kept; none keeps all.
        seeds: runs of each model; by default the paper's number.
        data: folder of the data sets.
        changes: settings of all runs, ``key=value``, which the title then has.

    Raises:
        SettingsError: an unknown entry or preset, an entry that is not reproduced, or invalid
            changes.
    """
    cells = cells_of(name)
    entry = entries().loc[name]
    if entry.unavailable:
        raise SettingsError(f"{name} ({entry.source}) is not reproduced: {entry.unavailable}")
    known = cells["preset"].unique()
    for preset in only:
        if preset not in known:
            raise unknown(f"preset of {name}", preset, known, listing="--dry-run lists them")
    if only:
        cells = cells[cells["preset"].isin(only)]
    jobs = {}
    for preset, text in models(cells):
        further = [*text.split(), *changes]
        jobs[preset, text] = study.plan(
            [preset],
            out=out / "runs" / quote(",".join(further), safe="=,"),
            seeds=seeds or entry.trials,
            changes=further,
            data=data,
        )
    title = f"{name}: {', '.join([entry.title, *changes])} ({entry.source})"
    return Plan(
        name=name,
        title=title,
        note=entry.note,
        cells=cells,
        jobs=jobs,
    )


def run(
    plan: Plan,
    *,
    workers: int,
    say: Callable[[str], None],
) -> None:
    """Train, or resume, and evaluate the runs of an entry; OOD sets that are missing are left out.

    Args:
        plan: the runs.
        workers: number of runs at a time.
        say: called with a message after each run, and for OOD sets that are missing.

    Raises:
        DatasetError: the data of a model are missing.
        Exception: the first one of a run.
    """
    root = next(iter(plan.jobs.values()))[0].root
    known = []
    for name in _options(plan.cells)["ood"]:
        try:
            ood_sets.load(name, root=root, size=32, channels=3, limit=1)
            known.append(name)
        except DatasetError as error:
            say(f"left out: {error}")
    jobs: list[Job] = []
    for model, cells in plan.cells.groupby(["preset", "changes"], sort=False):
        options = _options(cells)
        options["ood"] = [name for name in options["ood"] if name in known]
        jobs += study.check(plan.jobs[model], **options)
    study.run_study(jobs, workers=workers, say=say)


def _options(cells: pd.DataFrame) -> dict[str, Any]:
    """Return the options of an evaluation that gives some cells."""
    names = cells["set"].drop_duplicates().map(averaged_sets).explode().drop_duplicates()
    kinds = names.str.split(
        "/",
        n=2,
        expand=True,
    ).reindex(columns=range(3))
    shifted = kinds[kinds[0] == "shift"]
    methods = cells["method"].unique()
    return {
        "by": [name for name in methods if name not in (POSTERIOR, ENSEMBLE)],
        "ood": list(kinds[1][kinds[0] == "ood"]),
        "shift": len(shifted) > 0,
        "corruptions": list(shifted[1].unique()),
        "severities": sorted(map(int, shifted[2].unique())),
    }


def _read(name: str, index: str) -> pd.DataFrame:
    """Return a file's lines; texts may be empty, numbers NaN."""
    missing = {"value": "", "std": ""}
    return pd.read_csv(
        PAPERS / f"{name}.csv", index_col=index, keep_default_na=False, na_values=missing
    )
