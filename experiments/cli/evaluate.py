"""``probattn evaluate``: evaluate a run on its test data."""

from pathlib import Path
from typing import Annotated

import typer

from probattn.experiments.cli.terminal import COUNT, SEED, Data, say, show_metrics, split_words


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
    baseline: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Evaluated run to plot next to this one under --shift.")
    ] = None,
) -> None:
    """Evaluate a run on its test data: tables, metrics.json, predictions/, figures/ and report.html."""
    from probattn.experiments.evaluation import eval_sets, generated_files
    from probattn.experiments.evaluation import evaluate as evaluation
    from probattn.experiments.evaluation.provenance import digests
    from probattn.experiments.reporting import evaluation_tables, posterior_words, report
    from probattn.inference.distributed import world

    baselines = [evaluation_tables.read_baseline(baseline)] if baseline else []
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
    for title, table in evaluation_tables.terminal_tables(done).items():
        say(f"\n{title}", style="bold")
        show_metrics(table)
    say("\nDecisions", style="bold")
    for sentence in done.result.decisions.describe():
        say(sentence)
    for sentence in posterior_words.warnings(done.result):
        say(sentence)
    files = [run / "report.html", *report.save_figures(run / "figures", done.result)]
    files += evaluation_tables.save(run, done, baselines=baselines)
    report.write(run / "report.html", [report.section(done.result)], title=f"probattn: {done.result.name}")
    generated_files.record(run, files, digests(done.provenance))
    say(f"report: {run / 'report.html'}; all tables: {run / 'tables'}")
