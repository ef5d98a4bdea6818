"""``probattn study``, ``compare`` and ``demo``: layers over seeds on any data, their comparison,
and an example."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from probattn.experiments.cli import terminal
from probattn.experiments.cli.terminal import COUNT, say, split_words
from probattn.models.layer_factories import LAYERS

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
    from probattn.experiments.studies import compare as comparison
    from probattn.experiments.studies.verdict import verdict

    read = comparison.read(results, trust_code=trust_code)
    # Runs may lie in the folder of the comparison, but it in none of them.
    comparison.write(out, read, inputs=[path for path in results if path.is_file()])
    conclusion = verdict(read)
    if conclusion:
        say("\nConclusion", style="bold")
        say("\n".join(conclusion))
    for title, table in comparison.tables(read.scores, read.comparisons).items():
        say(f"\n{title}", style="bold")
        terminal.show_metrics(table)
    say(f"results.csv, comparison.md, comparison.tex: {out}")


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
    ] = 5,
    new_splits: Annotated[
        bool, typer.Option("--new-splits", help="Divide the data anew for each seed.")
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(**COUNT, help="Epochs of each run; default the preset's.")
    ] = None,
    set_: terminal.SettingChanges = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Methods, or none; default all for the task.")
    ] = None,
    shift: Annotated[
        bool | None, typer.Option(help="Evaluate on corrupted images; default for images.")
    ] = None,
    ood: Annotated[
        list[str] | None, typer.Option(help="OOD sets, folders or none; default those of the task.")
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
    run_study(check(jobs, by=by, shift=shift, ood=sets), workers=workers, say=say)
    typed = set[str]().union(*(job.settings.names() for job in jobs))
    compare([job.folder for job in jobs], out, trust_code=cast(Any, typed))


def demo(
    out: terminal.OutFolder = Path("runs/demo"),
    epochs: Epochs = 20,
    layers: Layers = "softmax,kep-svgp,anchored",
    workers: terminal.Workers = terminal.CORES,
) -> None:
    """Train layers on digits and compare them on clean and on corrupted images, in tables and a
    report."""
    from probattn.experiments.config.presets import PRESETS
    from probattn.experiments.evaluation.evaluate import evaluate
    from probattn.experiments.reporting import report
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
    sections = [report.section(evaluate(job.folder, **options).result) for job in jobs]
    for section in sections:
        say(f"{section['result'].name}: {section['conclusion'][-1]}")
    compare([job.folder for job in jobs], out)
    report.write(out / "report.html", sections, title="probattn demo: handwritten digits")
    say(
        f"One test image is {100 / len(sections[0]['result'].test):.2f} points of accuracy; "
        f"report: {out}/report.html"
    )
