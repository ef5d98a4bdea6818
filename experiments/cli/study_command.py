"""``probattn study``, ``compare`` and ``demo``: layers over seeds on any data, their comparison,
and an example."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probattn.experiments.cli import terminal
from probattn.experiments.cli.terminal import COUNT, say, split_words
from probattn.models.layer_records import LAYERS

if TYPE_CHECKING:
    from probattn.experiments.studies.study import Job

# Layers of the demo, which leaves out variants of KEP-SVGP's objective.
SHOWN = [name for name, record in LAYERS.items() if record.in_demo]
Epochs = Annotated[
    int, typer.Option(min=3, max=COUNT["max"], help="Epochs of each run, including its warm start.")
]
Layers = Annotated[
    str,
    typer.Option(help=f"Comma-separated layers or presets on digits, or all: {', '.join(SHOWN)}."),
]
RESULTS = "Evaluated runs, folders that hold them, or a CSV of results."


def compare(
    results: Annotated[list[Path], typer.Argument(metavar="RUN…", help=RESULTS)],
    out: terminal.OutFolder = Path("runs/comparison"),
    trust_code: terminal.TrustCode = False,
) -> None:
    """Compare evaluated runs: mean ± standard deviation over seeds, paired with the softmax twin by
    the same method."""
    _compare(results, out, trust_code=trust_code)


def _compare(results: list[Path], out: Path, *, trust_code: Any) -> dict[str, Any]:
    """Write and print a comparison; return what begins its report: ``verdict`` and ``tables``."""
    from probattn.experiments.studies import compare as comparison
    from probattn.experiments.studies.verdict import verdict

    read = comparison.read(results, trust_code=trust_code)
    # Runs may lie in the folder of the comparison, but it in none of them.
    comparison.write(out, read, inputs=[path for path in results if path.is_file()])
    conclusion = verdict(read)
    if conclusion:
        say("\nConclusion", style="bold")
        say("\n".join(conclusion))
    tables = comparison.tables(read.scores, read.comparisons)
    for title, table in tables.items():
        say(f"\n{title}", style="bold")
        terminal.show_metrics(table)
    say(f"results.csv, comparison.md, comparison.tex: {out}")
    return {"verdict": conclusion, "tables": tables}


def _conclude(jobs: "Sequence[Job]", out: Path, *, title: str) -> None:
    """Compare the runs of a study, and write its report, with the first run of each kind."""
    from probattn.experiments.evaluation.evaluate import evaluate
    from probattn.experiments.reporting import report

    typed = set[str]().union(*(job.settings.names() for job in jobs))
    first: dict[Path, Job] = {}
    for job in jobs:
        first.setdefault(job.folder.parent, job)
    sections = []
    for folder, job in first.items():
        evaluated = evaluate(job.folder, root=job.root, trust_code=typed, **job.options)
        # with the layer, where a preset has several
        name = str(folder.relative_to(out))
        sections.append(report.section(replace(evaluated.result, name=name)))
    begin = _compare([job.folder for job in jobs], out, trust_code=typed)
    for section in sections:
        result = section["result"]
        for sentence in (*result.training_notes, section["conclusion"][-1]):
            say(f"{result.name}: {sentence}")
    report.write(out / "report.html", sections, title=title, **begin)
    say(f"report: {out / 'report.html'}")


def study(
    presets: Annotated[
        list[str], typer.Argument(metavar="PRESET…", help="Names from `probattn presets`.")
    ],
    data: Annotated[
        str | None, typer.Option(metavar="PATH", help="Your data, or the folder of the data sets.")
    ] = None,
    layers: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Layers, also package.module:Class.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=terminal.MAX_RUNS, help="Runs of each preset and layer.")
    ] = 3,
    new_splits: Annotated[
        bool, typer.Option("--new-splits", help="Divide the data anew for each seed.")
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(**COUNT, help="Epochs of each run; default the preset's.")
    ] = None,
    set_: terminal.SettingChanges = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Methods, all or none; default temperature, for classes."),
    ] = None,
    shift: Annotated[bool, typer.Option(help="Also evaluate on corrupted images.")] = False,
    ood: Annotated[
        list[str] | None, typer.Option(help="OOD images: default, svhn, letters, … or a folder.")
    ] = None,
    workers: terminal.Workers = terminal.CORES,
    out: terminal.OutFolder = Path("runs/study"),
) -> None:
    """Train presets with several layers and seeds on any data, evaluate and compare them."""
    from probattn.experiments.studies import compare as comparison
    from probattn.experiments.studies.study import check, plan, run_study

    by, sets = (
        words and [word for word in split_words(words) if word != "none"] for words in (method, ood)
    )
    variants = split_words([layers] if layers else None)
    jobs = plan(
        presets,
        seeds=seeds,
        epochs=epochs,
        out=out,
        changes=set_ or (),
        layers=variants,
        data=data,
        new_splits=new_splits,
    )
    say(f"{len(jobs)} runs, {min(workers, len(jobs))} at a time; a run takes a minute or many")
    comparison.check(out)
    jobs = check(jobs, by=by, shift=shift, ood=sets or ())
    run_study(jobs, workers=workers, say=say)
    _conclude(jobs, out, title=f"probattn study: {', '.join(presets)}")


def demo(
    out: terminal.OutFolder = Path("runs/demo"),
    epochs: Epochs = 20,
    layers: Layers = "softmax,kep-svgp,anchored",
    workers: terminal.Workers = terminal.CORES,
) -> None:
    """Train layers on digits and compare them on clean and on corrupted images, in tables and a
    report."""
    from probattn.experiments.config.presets import PRESETS
    from probattn.experiments.studies import study

    options: dict[str, Any] = {
        "num_samples": 5,
        "shift": True,
        "severities": (3,),
        "baselines": True,
    }
    words = SHOWN if layers == "all" else split_words([layers])
    # Layers without a preset of their own on digits, in the place of softmax
    others = [word for word in words if word in LAYERS and f"digits/{word}" not in PRESETS]
    named = [f"digits/{word}" for word in words if word not in others]
    common: dict[str, Any] = {
        "seeds": 1,
        "epochs": epochs,
        "out": out,
        "changes": ["network.standardise=true"],
    }
    planned = study.plan(named, **common)
    if others:
        planned += study.plan(["digits/softmax"], layers=others, **common)
    jobs = [replace(job, options=options) for job in planned]
    say(
        f"{len(jobs)} runs of {epochs} epochs, {min(workers, len(jobs))} at a time; a run takes "
        "half a minute or more"
    )
    study.run_study(jobs, workers=workers, say=say)
    _conclude(jobs, out, title="probattn demo: handwritten digits")
