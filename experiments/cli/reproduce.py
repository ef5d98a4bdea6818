"""``probattn reproduce``: tables and figures of the papers."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Column, Table

from probattn.experiments.cli import terminal
from probattn.experiments.cli.terminal import say

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Table or figure, such as cgp/table-1.")]
List = Annotated[bool, typer.Option("--list", help="List the tables and figures.")]
Scale = Annotated[Literal["full", "cpu"], typer.Option(help="cpu: reduced, and not compared with the paper.")]
SEEDS = {"min": 1, "max": terminal.MAX_RUNS, "help": "Runs of each model; default the paper's number, 2 for cpu."}
Blocks = Annotated[list[str] | None, typer.Option(help="Blocks of the table, such as CIFAR-10; default all.")]
Rows = Annotated[list[str] | None, typer.Option(help="Rows of the table, such as MSP; default all.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")]


def reproduce(
    name: Name = None,
    list_: List = False,
    scale: Scale = "full",
    seeds: Annotated[int | None, typer.Option(**SEEDS)] = None,
    block: Blocks = None,
    row: Rows = None,
    set_: terminal.SettingChanges = None,
    out: terminal.OutFolder = Path("runs/reproduce"),
    data: terminal.Data = None,
    workers: terminal.Workers = terminal.CORES,
    dry_run: DryRun = False,
) -> None:
    """Reproduce a table or figure of the papers: train what is missing, evaluate, and compare with the paper's numbers.

    A command that was stopped continues where it was.
    """
    from probattn.experiments.studies import paper_comparison, reproduction

    if list_ or name is None:
        _show_entries()
        return
    chosen = {"blocks": block or (), "rows": row or (), "changes": set_ or ()}
    plan = reproduction.plan(name, out=out, is_reduced=scale == "cpu", seeds=seeds, data=data, **chosen)
    say(plan.title, style="bold")
    for jobs in plan.jobs.values():
        say(f"{len(jobs)} seeds, {jobs[0].settings.epochs} epochs: {jobs[0].folder.parent}")
    if dry_run:
        return
    done = reproduction.run(plan, workers=workers, say=say)
    table = paper_comparison.results(plan, list(done))
    for block, shown in paper_comparison.tables(plan, table).items():
        say(f"\n{block}", style="bold")
        terminal.show_metrics(shown)
    say("\n".join(map(str, paper_comparison.write(plan, table, done, out))))


def _show_entries() -> None:
    from probattn.experiments.studies import paper_cells, reproduction

    table = Table(Column("name", no_wrap=True), "what", "source", "data", Column("runs", justify="right"))
    for name, entry in paper_cells.entries().iterrows():
        cells = paper_cells.cells(str(name))
        runs = len(reproduction.models(cells)) * reproduction.number_of_seeds(entry.trials)
        about = f"{entry.title} (not reproduced: {entry.unavailable})" if entry.unavailable else entry.title
        table.add_row(str(name), about, entry.source, ", ".join(reproduction.data_names(cells)), str(runs or "–"))
    terminal.show_table(table)
    say("`probattn reproduce NAME --dry-run` lists the runs of one.")
