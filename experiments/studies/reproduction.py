"""Runs of a paper's table or figure: planned, trained and evaluated, resumable."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from probattn.experiments.config import presets
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images import ood_sets as ood_datasets
from probattn.experiments.studies import paper_cells, study
from probattn.experiments.studies.study import Job

REDUCED_SEEDS, REDUCED_SEVERITIES = 2, (3,)
DEFAULT_TRIALS = 3
"""Seeds where the paper does not give its number."""
Model = tuple[str, str]
"""Preset and changes of its settings."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Cells of an entry, and the runs that they need, by model; all of a reduced size, or of the paper's."""

    name: str
    cells: pd.DataFrame
    jobs: dict[Model, list[Job]]
    is_reduced: bool

    @property
    def severities(self) -> Sequence[int]:
        """Severities of the corruptions."""
        return REDUCED_SEVERITIES if self.is_reduced else paper_cells.SEVERITIES

    @property
    def title(self) -> str:
        """Title with its source; says if the size is reduced."""
        entry = paper_cells.entries().loc[self.name]
        return f"{self.name}: {entry.title}{', reduced (cpu)' if self.is_reduced else ''} ({entry.source})"


def number_of_seeds(trials: float) -> int:
    """Return the paper's number of seeds, or :data:`DEFAULT_TRIALS`."""
    return DEFAULT_TRIALS if math.isnan(trials) else int(trials)


def models(cells: pd.DataFrame) -> list[Model]:
    """Return preset and changes of the models of some cells."""
    return list(cells[["preset", "changes"]].drop_duplicates().itertuples(index=False, name=None))


def data_names(cells: pd.DataFrame) -> list[str]:
    """Return the names of the data sets and OOD sets of some cells."""
    names = {}
    for (preset, changes), group in cells.groupby(["preset", "changes"], sort=False):
        names[presets.preset(preset).with_changes(changes.split()).data.name] = None
        sets = [name for cell in group["set"] for name in paper_cells.averaged_sets(cell)]
        names |= {name.removeprefix("ood/"): None for name in sets if name.startswith("ood/")}
    return list(names)


def plan(
    name: str,
    *,
    out: Path,
    is_reduced: bool = False,
    seeds: int | None = None,
    data: Path | None = None,
    changes: Sequence[str] = (),
    **chosen: Sequence[str],
) -> Plan:
    """Plan the runs of an entry, in ``OUT/runs``, which entries share, or ``OUT/runs-cpu``.

    Args:
        name: such as ``kep-svgp/table-1``.
        out: folder of all results.
        is_reduced: for hours of a CPU instead of weeks; results are not compared with the paper's.
        seeds: runs of each model; by default the paper's number, or 2 of a reduced size.
        data: folder of the data sets.
        changes: settings of all runs, ``key=value``.
        chosen: ``blocks`` and ``rows`` of the table.

    Raises:
        SettingsError: an unknown entry, block or row, an entry that is not reproduced, or invalid changes.
    """
    cells, jobs = paper_cells.cells(name, **chosen), {}
    entry = paper_cells.entries().loc[name]
    if entry.unavailable:
        raise SettingsError(f"{name} ({entry.source}) is not reproduced: {entry.unavailable}")
    seeds = seeds or (REDUCED_SEEDS if is_reduced else number_of_seeds(entry.trials))
    folder = out / ("runs-cpu" if is_reduced else "runs")
    for preset, text in models(cells):
        epochs, fewer = paper_cells.reduced(preset) if is_reduced else (None, [])
        extra = {preset: [*text.split(), *fewer, *changes]}
        sizes = {"seeds": seeds, "epochs": epochs, "preset_changes": extra}
        jobs[preset, text] = study.plan([preset], out=folder, data=data, **sizes)
    return Plan(name=name, cells=cells, jobs=jobs, is_reduced=is_reduced)


def run(plan: Plan, *, workers: int, say: Callable[[str], None]) -> dict[Model, dict[str, Any]]:
    """Train, or resume, and evaluate the runs whose data are there; return the options of the evaluations by model.

    Args:
        plan: the runs.
        workers: number of runs at a time.
        say: called with a message after each run, and for data that are missing.

    Raises:
        DatasetError: all data are missing.
        Exception: the first one of a run.
    """
    done: dict[Model, dict[str, Any]] = {}
    for group, options in _groups(plan, say):
        jobs = [job for model in group for job in plan.jobs[model]]
        try:
            study.run_study(jobs, workers=workers, say=say, **options)
        except DatasetError as error:
            say(f"left out: {', '.join(preset for preset, _ in group)}: {error}")
        else:
            done |= dict.fromkeys(group, options)
    if not done:
        raise DatasetError(f"the data of {plan.name} are missing; give their folder with --data")
    return done


def _groups(plan: Plan, say: Callable[[str], None]) -> Iterator[tuple[list[Model], dict[str, Any]]]:
    """Yield models on the same data that need the same evaluation, with its options."""
    root = next(iter(plan.jobs.values()))[0].root
    names = {name for cell in plan.cells["set"].unique() for name in paper_cells.averaged_sets(cell)}
    missing = {name for name in names if name.startswith("ood/") and not _is_there(name, root, say)}
    groups: dict[str, tuple[list[Model], dict[str, Any]]] = {}
    for model, cells in plan.cells.groupby(["preset", "changes"], sort=False):
        sets = [name for cell in cells["set"] for name in paper_cells.averaged_sets(cell, severities=plan.severities)]
        shifted = [name.split("/")[1:] for name in sets if name.startswith("shift/")]
        options: dict[str, Any] = {
            "by": [name for name in cells["method"].unique() if name not in ("posterior", "ensemble")],
            "ood": list(dict.fromkeys(name[4:] for name in sets if name.startswith("ood/") and name not in missing)),
            "shift": bool(shifted),
        }
        if shifted:
            options["corruptions"] = list(dict.fromkeys(corruption for corruption, _ in shifted))
            options["severities"] = sorted({int(severity) for _, severity in shifted})
        key = repr((plan.jobs[model][0].settings.data, options))
        groups.setdefault(key, ([], options))[0].append(model)
    yield from groups.values()


def _is_there(name: str, root: Path | None, say: Callable[[str], None]) -> bool:
    """Return True if an OOD set can be read, or downloaded."""
    try:
        ood_datasets.load(name[4:], root=root, size=32, channels=3, in_distribution="", limit=1)
    except DatasetError as error:
        say(f"left out: {error}")
        return False
    return True
