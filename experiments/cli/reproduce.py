"""``probattn reproduce``: tables and figures of the papers."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from probattn.experiments.cli import terminal
from probattn.experiments.cli.terminal import say

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Table or figure, such as cgp/table-1.")
]
Presets = Annotated[
    list[str] | None, typer.Argument(help="Presets of the models to train; default all of them.")
]
List = Annotated[bool, typer.Option("--list", help="List the tables and figures.")]
SEEDS = {
    "min": 1,
    "max": terminal.MAX_RUNS,
    "help": "Runs of each model; default the paper's number.",
}
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")]


def reproduce(
    name: Name = None,
    presets: Presets = None,
    list_: List = False,
    seeds: Annotated[int | None, typer.Option(**SEEDS)] = None,
    set_: terminal.SettingChanges = None,
    out: terminal.OutFolder = Path("runs/reproduce"),
    data: terminal.Data = None,
    workers: terminal.Workers = terminal.CORES,
    dry_run: DryRun = False,
) -> None:
    """Reproduce a table or figure of the papers: train what is missing, evaluate, and compare with
    the paper's numbers.

    A command that was stopped continues where it was.
    """
    from probattn.experiments.studies import paper_comparison, reproduction

    if list_ or name is None:
        _show_entries()
        return
    plan = reproduction.plan(
        name, out=out, only=presets or (), seeds=seeds, data=data, changes=set_ or ()
    )
    say(plan.title, style="bold")
    for jobs in plan.jobs.values():
        say(f"{len(jobs)} seeds, {jobs[0].settings.epochs} epochs: {jobs[0].folder.parent}")
    if dry_run:
        return
    reproduction.run(plan, workers=workers, say=say)
    cells = paper_comparison.results(plan)
    for block, table in paper_comparison.tables(cells).items():
        say(f"\n{block}", style="bold")
        terminal.show_metrics(table)
    say(f"also in {paper_comparison.write(plan, cells, out)} and .csv")


def _show_entries() -> None:
    from probattn.experiments.studies import reproduction

    table = Table(
        Column("name", no_wrap=True), "what", "source", "data", Column("runs", justify="right")
    )
    for name, entry in reproduction.entries().iterrows():
        cells = reproduction.cells_of(str(name))
        about = (
            f"{entry.title} (not reproduced: {entry.unavailable})"
            if entry.unavailable
            else entry.title
        )
        runs = str(len(reproduction.models(cells)) * entry.trials or "–")
        table.add_row(
            str(name), about, entry.source, ", ".join(reproduction.data_names(cells)), runs
        )
    terminal.show_table(table)
    say("`probattn reproduce NAME --dry-run` lists the runs of one.")
