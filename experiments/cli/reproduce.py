"""``probattn reproduce``: tables and figures of the papers."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markdown import Markdown
from rich.table import Table

from probattn.experiments.cli.terminal import (
    CORES,
    COUNT,
    MAX_RUNS,
    Data,
    SettingChanges,
    check_folder,
    console,
    fail,
    interruptible,
    say,
    show_table,
)


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Table or figure, such as cgp/table-1.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the tables and figures.")] = False,
    scale: Annotated[
        Literal["full", "cpu"], typer.Option(help="full: as in the paper; cpu: reduced, not compared with it.")
    ] = "full",
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MAX_RUNS, help="Runs of each model; default the paper's number, 2 for cpu.")
    ] = None,
    block: Annotated[list[str] | None, typer.Option(help="Blocks of the table, such as CIFAR-10; default all.")] = None,
    row: Annotated[list[str] | None, typer.Option(help="Rows of the table, such as MSP; default all.")] = None,
    set_: SettingChanges = None,
    out: Annotated[Path, typer.Option(callback=check_folder, help="Folder of the runs and results.")] = Path(
        "runs/reproduce"
    ),
    data: Data = None,
    workers: Annotated[int, typer.Option(**COUNT, help="Runs at a time; default: one per core.")] = CORES,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")] = False,
) -> None:
    """Reproduce a table or figure of the papers: train what is missing, evaluate, and compare with the paper's numbers.

    A command that was stopped continues where it was.
    """
    with interruptible("the same command continues where it stopped"):
        from probattn.experiments.studies import paper_cells, paper_comparison, reproduction

        if list_ or name is None:
            _show_entries()
            return
        chosen = {"blocks": block or (), "rows": row or (), "changes": set_ or ()}
        reduced = scale == "cpu"
        plan = reproduction.plan(name, out=out, is_reduced=reduced, seeds=seeds, data=data, **chosen)
        if not plan.jobs:
            fail(f"{plan.title} is not reproduced: {paper_cells.entries()['unavailable'][name]}")
        say(plan.title, style="bold")
        for jobs in plan.jobs.values():
            say(f"{len(jobs)} seeds, {jobs[0].settings.epochs} epochs: {jobs[0].folder.parent}")
        if dry_run:
            return
        done = reproduction.run(plan, workers=workers, say=say)
        table = paper_comparison.results(plan, list(done))
        console.print(Markdown(paper_comparison.markdown(plan, table)))
        say("\n".join(map(str, paper_comparison.write(plan, table, done, out))))


def _show_entries() -> None:
    from probattn.experiments.studies import paper_cells, reproduction

    table = Table("name", "what", "source", "data", "runs")
    for name, entry in paper_cells.entries().iterrows():
        cells = paper_cells.cells(str(name))
        models = reproduction.models(cells)
        runs = str(len(models) * reproduction.number_of_seeds(entry.trials)) if models else "–"
        about = f"{entry.title} (not reproduced: {entry.unavailable})" if entry.unavailable else entry.title
        table.add_row(str(name), about, entry.source, ", ".join(reproduction.data_names(cells)), runs)
    show_table(table)
    say("`probattn reproduce NAME --dry-run` lists the runs of one.")
