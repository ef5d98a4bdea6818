"""``probattn study`` and ``probattn compare``: runs over seeds and their comparison."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from probattn.experiments.cli.terminal import (
    CORES,
    COUNT,
    MAX_RUNS,
    Data,
    Encoder,
    SettingChanges,
    check_folder,
    encoder_change,
    fail,
    interruptible,
    say,
    show_metrics,
    split_words,
)


def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of evaluated runs.")],
    out: Annotated[
        Path, typer.Option(callback=check_folder, help="Folder of the tables (Markdown, LaTeX, CSV) and figures.")
    ] = Path("runs/comparison"),
) -> None:
    """Compare evaluated runs over seeds: mean ± standard deviation, paired with the softmax twin by the same method."""
    _compare(folders, out)


def study(
    presets: Annotated[
        list[str] | None, typer.Argument(metavar="[PRESET]…", help="Presets; by default those of --layers on digits.")
    ] = None,
    out: Annotated[Path, typer.Option(callback=check_folder, help="Folder of the runs and of the comparison.")] = Path(
        "runs/study"
    ),
    layers: Annotated[
        str | None,
        typer.Option(help="Comma-separated layers on digits, or all (each once); default softmax,kep-svgp."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Runs of each preset.")] = 5,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=3, max=COUNT["max"], help="Epochs of each run, including its warm start; default from the preset."
        ),
    ] = None,
    set_: SettingChanges = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PRESET:]KEY=VALUE,…",
            help="Choose a setting on validation data, for one preset or for all; several form a grid.",
        ),
    ] = None,
    sweep_seeds: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Runs of each value of --sweep.")] = 1,
    encoder: Encoder = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Methods besides the posterior predictive; default all four.")
    ] = None,
    data: Data = None,
    workers: Annotated[int, typer.Option(**COUNT, help="Runs at a time; default: one per core.")] = CORES,
) -> None:
    """Train presets over seeds, evaluate them by every method (images also corrupted and OOD), and compare them."""
    with interruptible("the same command continues where it stopped"):
        from probattn.experiments.config import presets as known
        from probattn.experiments.evaluation import methods
        from probattn.experiments.studies import study as whole
        from probattn.experiments.studies import sweep as sweeps
        from probattn.experiments.studies import sweep_tables

        if presets and layers:
            fail("give presets, or --layers for those on digits, not both")
        names = presets or known.digits(layers or "softmax,kep-svgp")
        changes = [*(set_ or ()), *encoder_change(encoder)]
        by = [methods.check(each) for each in split_words(method) or whole.METHODS]
        common = {"epochs": epochs, "out": out, "changes": changes, "root": data}
        todo = whole.plan(names, seeds=seeds, **common)
        swept = sweeps.parse(sweep or (), names)
        choices = []
        if swept:
            planned = sweeps.plan_sweeps(swept, seeds=sweep_seeds, **common)
            say("\n".join(sweeps.budgets(names, planned, seeds=seeds, sweep_seeds=sweep_seeds)))
            choices = sweeps.run_sweeps(swept, planned, workers=workers, say=say)
            sweep_tables.write(out, choices)
            show_metrics(sweep_tables.sweep_table(choices))
            say("\n".join(sweeps.outcome(choices)))
            own = {choice.preset: choice.changes for choice in choices}
            todo = whole.plan(names, seeds=seeds, own=own, **common)
        say(f"{len(todo)} runs, {min(workers, len(todo))} at a time; a run takes a minute or many")
        whole.run_study(todo, by=by, workers=workers, say=say)
        tuned = {key for lists in swept.values() for key in lists}
        _compare([job.folder for job in todo], out / "comparison", tuned=tuned, note=" ".join(map(str, choices)))


def _compare(folders: list[Path], out: Path, *, tuned: Collection[str] = (), note: str = "") -> None:
    from probattn.experiments.reporting.tables import comparison_table
    from probattn.experiments.studies import compare as compared
    from probattn.experiments.studies.collect import rows

    gathered = rows(folders, tuned=tuned, note=note)
    found = compared.comparisons(gathered)
    for key, comparison in found.items():
        if not key.startswith("ood-") or key.endswith("-auroc"):
            say(f"\n{compared.title(key)}", style="bold")
            show_metrics(comparison_table(comparison))
    compared.write(out, gathered, found)
    say(f"tables and figures: {out}")
