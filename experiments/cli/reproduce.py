"""``probattn reproduce``: tables and figures of the papers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Column, Table

from probattn.experiments.cli.terminal import (
    CORES,
    COUNT,
    MAX_RUNS,
    Data,
    SettingChanges,
    check_folder,
    fail,
    interruptible,
    say,
    show_metrics,
    show_table,
)

if TYPE_CHECKING:
    from probattn.experiments.studies.reproduce import Plan


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Table or figure, such as cgp/table-1.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the tables and figures.")] = False,
    scale: Annotated[
        Literal["full", "cpu"],
        typer.Option(help="full: as in the paper; cpu: reduced, named so, not compared with it."),
    ] = "full",
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_RUNS, help="Runs of each model; default the paper's number, 2 for cpu."),
    ] = None,
    block: Annotated[list[str] | None, typer.Option(help="Blocks of the table, such as CIFAR-10; default all.")] = None,
    row: Annotated[list[str] | None, typer.Option(help="Rows of the table, such as MSP; default all.")] = None,
    set_: SettingChanges = None,
    out: Annotated[Path, typer.Option(callback=check_folder, help="Folder of the runs and results.")] = Path(
        "runs/reproduce"
    ),
    data: Data = None,
    workers: Annotated[int, typer.Option(**COUNT, help="Runs at a time; default: one per core.")] = CORES,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how long it will take and what is missing.")
    ] = False,
) -> None:
    """Reproduce a table or figure of the papers: train what is missing, evaluate, and compare with the paper's numbers.

    A command that was stopped continues where it was. Time and missing data are said beforehand.
    """
    with interruptible("the same command continues where it stopped"):
        from probattn.experiments.studies import reproduce as study
        from probattn.experiments.studies import reproductions
        from probattn.experiments.studies.scales import SCALES

        if list_:
            _show_entries()
            return
        if name is None:
            fail("name a table or figure, such as kep-svgp/table-1; `probattn reproduce --list` lists all")
        entry = reproductions.find(name)
        if entry.unavailable:
            fail(f"{name} ({entry.source}) is not reproduced: {entry.unavailable}")
        entry = study.select(entry, blocks=block or (), rows=row or ())
        size = replace(SCALES[scale], changes=tuple(set_ or ()))
        options = {"scale": size, "seeds": seeds, "out": out, "root": data}
        plan = study.plan(entry, find=study.look if dry_run else study.obtain, **options)
        _announce(plan, workers=workers)
        if dry_run:
            return
        study.run(plan, workers=workers, say=say)
        _show_results(plan, out)


def _show_entries() -> None:
    from probattn.experiments.studies.reproductions import ENTRIES
    from probattn.experiments.studies.scales import SCALES

    table = Table(Column("name", no_wrap=True), "what", "source", "data", Column("runs", justify="right"))
    for name, entry in ENTRIES.items():
        models = dict.fromkeys(row.model for part in entry.parts for row in part.rows.values())
        data = ", ".join(dict.fromkeys(each for part in entry.parts for each in (part.data, *part.ood)))
        runs = str(len(models) * SCALES["full"].number_of_seeds(entry)) if models else "–"
        about = f"{entry.title} (not reproduced: {entry.unavailable})" if entry.unavailable else entry.title
        table.add_row(name, about, entry.source, data, runs)
    show_table(table)
    say("`probattn reproduce NAME --dry-run` says which presets are trained, how long that takes and what is missing.")


def _announce(plan: Plan, *, workers: int) -> None:
    """Say what will be run, how long it will take and which data are missing."""
    from probattn.experiments.studies import estimate
    from probattn.experiments.studies import reproduce as study
    from probattn.experiments.studies.reproduction_report import size

    entry, label = plan.entry, plan.scale.label
    say(f"{entry.name}: {entry.title}{f', {label}' if label else ''} ({entry.source})", style="bold")
    for text, titles in plan.missing.items():
        say(f"missing for {'; '.join(titles)}: {text}")
    if not plan.jobs:
        models = (row.model for part in entry.parts for row in part.rows.values())
        say(f"presets, once the data are there: {', '.join(dict.fromkeys(model.preset for model in models))}")
        return
    say(f"presets: {', '.join(dict.fromkeys(job.model.preset for job in plan.jobs))}")
    say(size(plan))
    seconds = study.estimate(plan, workers=workers)
    at_a_time = min(workers, len(plan.jobs))
    say(
        f"{estimate.in_words(seconds)} on this machine, {at_a_time} at a time, by the time of a few steps of each model"
    )


def _show_results(plan: Plan, out: Path) -> None:
    from probattn.experiments.studies import against_paper, reproduction_report

    found = reproduction_report.compared(plan)
    for each in found:
        say(f"\n{each.part.title}{f', {plan.scale.label}' if plan.scale.label else ''}", style="bold")
        for table in against_paper.tables(each):
            show_metrics(table)
    for path in reproduction_report.write(plan, found, out):
        say(str(path))
