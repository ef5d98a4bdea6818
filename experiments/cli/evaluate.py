"""``probattn evaluate``: evaluate a run on its test data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probattn.experiments.cli.terminal import COUNT, SEED, Data, say, show_metrics, split_words

if TYPE_CHECKING:
    from probattn.experiments.evaluation.evaluate import Evaluation
    from probattn.experiments.reporting.tables import Table


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    data: Data = None,
    num_samples: Annotated[
        int | None, typer.Option(**COUNT, help="Number of posterior samples; default train.num_samples.")
    ] = None,
    seed: Annotated[int, typer.Option(**SEED, help="Seed of the posterior samples.")] = 0,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Also evaluate refit, temperature, mc-dropout, laplace, sv-dkl or, e.g., refit+temperature."),
    ] = None,
    shift: Annotated[
        bool, typer.Option("--shift", help="Also evaluate on corrupted images (CIFAR-C or generated).")
    ] = False,
    corruptions: Annotated[str, typer.Option(help="standard (15), all (19) or comma-separated names.")] = "standard",
    severities: Annotated[str, typer.Option(help="Comma-separated severities of the corruptions.")] = "1,2,3,4,5",
    ood: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,…", help="Also evaluate on OOD images: default, svhn, lsun-crop, … or a folder."),
    ] = None,
    convergence: Annotated[
        bool, typer.Option(help="Test whether the posterior has converged, by refitting it on small training sets.")
    ] = True,
) -> None:
    """Evaluate a run on its test data: tables, metrics.json, predictions/, figures/ and report.html."""
    from probattn.experiments.evaluation import eval_sets, generated_files
    from probattn.experiments.evaluation import evaluate as evaluation
    from probattn.experiments.evaluation.provenance import digests
    from probattn.experiments.reporting import report
    from probattn.inference.distributed import world

    done = evaluation.evaluate(
        run,
        root=data,
        num_samples=num_samples,
        seed=seed,
        by=split_words(method),
        shift=shift,
        corruptions=eval_sets.parse_corruptions(corruptions),
        severities=eval_sets.parse_severities(severities),
        ood=split_words(ood),
        convergence=convergence,
        say=say if shift or ood or method else lambda text: None,
    )
    if world().rank > 0:
        return
    for title, table in _tables(done).items():
        say(f"\n{title}", style="bold")
        show_metrics(table)
    part = report.section(done.result)
    say("\nConclusion", style="bold")
    for sentence in [*part.content["conclusion"], *done.result.decisions.describe()]:
        say(sentence)
    files = [run / "report.html", *report.save_figures(run / "figures", done.result)]
    report.write(run / "report.html", [part], title=f"probattn: {done.result.name}")
    generated_files.record(run, files, digests(done.provenance))
    say(f"report: {run / 'report.html'}")


def _tables(done: "Evaluation") -> "dict[str, Table]":
    """Return the tables of all methods by title, and those of out-of-distribution (OOD) images."""
    from probattn.experiments.evaluation.methods import row_label
    from probattn.experiments.evaluation.metric_display import DETECTORS, OOD_DISPLAY, format_value
    from probattn.experiments.reporting.tables import metrics_table, plain_table

    scores = {row_label(done.result.label, method): each for method, each in done.scores.items()}
    kinds = {"Test data": {name: each.test for name, each in scores.items()}}
    for domain in done.result.domains:
        kinds[f"Test data, {domain}"] = {name: each.domain[domain] for name, each in scores.items()}
    if done.result.shift:
        title = "Corrupted test images, mean over corruptions and severities"
        kinds[title] = {name: each.mean_shift for name, each in scores.items()}
    tables = {title: metrics_table(list(rows.items()), corner="method") for title, rows in kinds.items()}
    for name in done.result.ood:
        columns = ("method", "detector", *(f"{metric.title} %" for metric in OOD_DISPLAY.values()))
        rows = [
            (row, DETECTORS[detector], *(format_value(values[key], 100) for key in OOD_DISPLAY))
            for row, each in scores.items()
            for detector, values in each.ood[name].items()
        ]
        tables[f"Out-of-distribution images, {name}"] = plain_table(columns, rows)
    return tables
