"""``probattn study`` and ``probattn compare``: layers over seeds on any data, and their comparison."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from probattn.experiments.cli import terminal
from probattn.experiments.cli.terminal import COUNT, say, split_words

Out = Annotated[
    Path,
    typer.Option(callback=terminal.writable, file_okay=False, help="Folder of the tables, or of a study."),
]
RESULTS = "Evaluated runs, folders that hold them, or a CSV of results."


def compare(
    results: Annotated[list[Path], typer.Argument(metavar="RUN…", help=RESULTS)], out: Out = Path("runs/comparison")
) -> None:
    """Compare evaluated runs: mean ± standard deviation over seeds, paired with the softmax twin by the same method."""
    _compare(results, out)


def study(
    presets: Annotated[list[str] | None, typer.Argument(help="Presets; default digits/softmax.")] = None,
    data: Annotated[str | None, typer.Option(metavar="PATH", help="Your data, or the folder of the data sets.")] = None,
    layers: Annotated[str | None, typer.Option(metavar="NAME,…", help="Layers, also package.module:Class.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=terminal.MAX_RUNS, help="Runs of each preset and layer.")] = 5,
    epochs: Annotated[int | None, typer.Option(**COUNT, help="Epochs of each run; default the preset's.")] = None,
    set_: terminal.SettingChanges = None,
    method: Annotated[list[str] | None, typer.Option(help="Methods, or none; default all that suit.")] = None,
    shift: Annotated[bool | None, typer.Option(help="Evaluate on corrupted images; default for images.")] = None,
    ood: Annotated[list[str] | None, typer.Option(help="OOD images, folders or none; default those that suit.")] = None,
    workers: Annotated[int, typer.Option(**COUNT, help="Runs at a time; default one per core.")] = terminal.CORES,
    out: Out = Path("runs/study"),
) -> None:
    """Train presets with several layers and seeds on any data, evaluate and compare them."""
    from probattn.experiments.config.presets import digits
    from probattn.experiments.evaluation.methods import check
    from probattn.experiments.studies.study import plan, run_study

    names = presets or (digits("all") if layers == "all" else ["digits/softmax"])
    if presets is None and layers is None:
        layers = "softmax,kep-svgp"
    chosen = split_words([layers]) if layers not in (None, "all") else []
    by, sets = (words and [word for word in split_words(words) if word != "none"] for words in (method, ood))
    by = by and check(by)
    jobs = plan(names, seeds=seeds, epochs=epochs, out=out, changes=set_ or (), layers=chosen, data=data)
    say(f"{len(jobs)} runs, {min(workers, len(jobs))} at a time; a run takes a minute or many")
    run_study(jobs, workers=workers, say=say, by=by, shift=shift, ood=sets)
    _compare([job.folder for job in jobs], out)


def _compare(paths: Sequence[Path], out: Path) -> None:
    from probattn.experiments.studies import compare as comparison

    results, compared = comparison.read(paths)
    for title, table in comparison.tables(results, compared).items():
        say(f"\n{title}", style="bold")
        terminal.show_metrics(table)
    comparison.write(out, results, compared)
    say(f"results.csv, comparison.md, comparison.tex: {out}")
