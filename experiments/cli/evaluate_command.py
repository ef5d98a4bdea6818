"""``probattn evaluate``: evaluate runs on their test data."""

from pathlib import Path
from typing import Annotated, Any

import typer

from probattn.experiments.cli.terminal import (
    COUNT,
    SEED,
    Data,
    Refine,
    TrustCode,
    say,
    show_metrics,
    split_words,
)

SHARE = {"min": 0.001, "max": 0.999}
METHODS = (
    "Also evaluate temperature, bias, vector, isotonic, mc-dropout, laplace, sv-dkl, anchored or, "
    "e.g., laplace+temperature."
)


def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Folders of runs, or folders that hold them."),
    ],
    data: Data = None,
    num_samples: Annotated[
        int | None, typer.Option(**COUNT, help="Posterior samples; default those of train.")
    ] = None,
    seed: Annotated[int, typer.Option(**SEED, help="Seed of the posterior samples.")] = 0,
    refine: Refine = None,
    method: Annotated[list[str] | None, typer.Option(help=METHODS)] = None,
    shift: Annotated[
        bool, typer.Option("--shift", help="Also evaluate on corrupted images.")
    ] = False,
    corruptions: Annotated[
        list[str] | None, typer.Option(help="all (CIFAR-C's 19) or names; default 15.")
    ] = None,
    severities: Annotated[
        list[int] | None, typer.Option(help="Severity of --shift; default 1 to 5.")
    ] = None,
    ood: Annotated[
        list[str] | None, typer.Option(help="OOD images: default, svhn, letters, … or a folder.")
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Also score what one would use without attention.")
    ] = False,
    level: Annotated[
        float, typer.Option(**SHARE, help="Share of labels in prediction sets and intervals.")
    ] = 0.9,
    max_risk: Annotated[
        float, typer.Option(**SHARE, help="Largest error rate of accepted answers.")
    ] = 0.05,
    trust_code: TrustCode = False,
) -> None:
    """Evaluate runs on their test data: tables, scores.csv, calibration.json, predictions/ and
    report.html."""
    from probattn.experiments.data.images.corruptions import ALL, SEVERITIES, STANDARD
    from probattn.experiments.evaluation import evaluate as evaluation
    from probattn.experiments.reporting import report, review
    from probattn.experiments.reporting.tables import comparison_table
    from probattn.experiments.studies.collect import find_runs
    from probattn.experiments.studies.compare import comparisons

    names = ALL if corruptions == ["all"] else split_words(corruptions) or STANDARD
    options: dict[str, Any] = {
        "num_samples": num_samples,
        "seed": seed,
        "refine": refine,
        "by": split_words(method),
        "baselines": baselines,
        "ood": split_words(ood),
        "shift": shift,
        "corruptions": names,
        "severities": severities or SEVERITIES,
        "level": level,
        "max_risk": max_risk,
        "say": say,
        "trust_code": trust_code,
    }
    for run in find_runs(runs):
        done = evaluation.evaluate(run, root=data, **options)
        for title, table in comparisons(done.scores).items():
            say(f"\n{title}", style="bold")
            show_metrics(comparison_table(table))
        section = report.section(done.result, review=review.FILE)
        summary = done.result.summary
        if summary is not None and summary.notes:
            say("\nData", style="bold")
            say("\n".join(summary.notes))
        say("\nConclusion", style="bold")
        say("\n".join(section["conclusion"]))
        say(
            f"\nDecisions, chosen on validation data for a level of {level:g} and a risk of "
            f"{max_risk:g}",
            style="bold",
        )
        for decision, values in done.result.decisions.items():
            shown = ", ".join(f"{key} {value:.4g}" for key, value in values.items())
            say(f"{decision}: {shown if values.get('accepted', 1) else 'no answer is accepted'}")
        report.save_figures(run / "figures", section)
        report.write(run / "report.html", [section], title=f"probattn: {done.result.name}")
        review.write_beside(run, done.result)
        say(f"report: {run / 'report.html'}; all scores: {run / 'scores.csv'}")
