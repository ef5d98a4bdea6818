"""Report of evaluated runs: a self-contained HTML page with a conclusion in words, and figures as SVG."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from probattn.experiments.evaluation.metric_display import displays
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.plots import classes, model_diagnostics, regression, shift
from probattn.experiments.plots.svg import save_figure
from probattn.experiments.reporting.conclusion import conclusion
from probattn.experiments.reporting.example_cards import cards
from probattn.experiments.reporting.example_statistics import by_class, confused_pairs, confusion, metric_intervals
from probattn.experiments.reporting.html import render
from probattn.experiments.reporting.tables import Table, metrics_table
from probattn.inference import Prediction
from probattn.inference.io.files import write_bytes

CLASSES = 20
"""Largest number of classes with a confusion matrix; of more classes the others are folded."""


@dataclass(frozen=True)
class Section:
    """Part of a report on one run: its result, and the content of ``templates/run.html``."""

    result: RunResult
    content: dict[str, Any]


def section(result: RunResult) -> Section:
    """Return the part of a report on one run, with its figures drawn."""
    content: dict[str, Any] = {"conclusion": conclusion(result), "figures": figures(result), "limit": CLASSES}
    if result.probs is None or result.has_predictions:
        content |= {"intervals": metric_intervals(result), "displays": displays(result.metrics), "cards": cards(result)}
    if result.has_predictions:
        content |= {"classes": by_class(result), "pairs": confused_pairs(result)}
    content["domains"] = metrics_table([("test data", result.metrics), *result.domains.items()], corner="domain")
    content["variants"] = metrics_table([*result.variants.items()], corner="each latent variable")
    return Section(result, content)


def write(path: str | os.PathLike, sections: Sequence[Section], *, title: str) -> None:
    """Write a report as one self-contained HTML file, atomically; of several runs their comparison comes first.

    Args:
        path: the file.
        sections: those of its runs, see :func:`section`.
        title: heading of the page.
    """
    results = [part.result for part in sections]
    content = {"summary": summary_table(results), "shifted": shift_table(results), "figures": {}}
    if len(results) > 1:
        content["figures"] = shared_figures(results)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_bytes(Path(path), render("report.html", title=title, sections=sections, **content).encode())


def save_figures(folder: str | os.PathLike, result: RunResult) -> None:
    """Save the run's figures as ``folder/NAME.svg``."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, figure in figures(result).items():
        save_figure(Path(folder) / f"{name}.svg", figure)


def summary_table(results: Sequence[RunResult]) -> Table:
    """Return a row per run in the papers' scale, the best of several in bold."""
    return metrics_table([(result.name, result.metrics) for result in results], corner="run")


def shift_table(results: Sequence[RunResult]) -> Table | None:
    """Return the means over corruptions and severities, a row per run; None without runs on corrupted images."""
    shifted = [(result.name, pd.DataFrame(list(result.shift.values()))) for result in results if result.shift]
    rows = [(name, dict(metrics.mean(skipna=False))) for name, metrics in shifted]
    return metrics_table(rows, corner="run, corrupted images") if rows else None


def figures(result: RunResult) -> dict[str, Figure]:
    """Draw the figures of a run by name; those that it has nothing for are left out."""
    drawn = shared_figures([result]) | {"training": model_diagnostics.training(result.steps, result.epochs)}
    if result.has_predictions:
        drawn["reliability"] = classes.reliability(result.probs, result.labels)
        if len(result.classes) <= CLASSES:
            drawn["confusion"] = classes.confusion(confusion(result))
        if result.ood:
            drawn["ood"] = classes.ood_confidence(Prediction(probs=result.probs, labels=result.labels), result.ood)
    if result.numbers is not None:
        drawn["predicted"] = regression.predicted(result.numbers, result.labels)
        drawn["quantiles"] = regression.quantiles(result.numbers, result.labels)
    return {name: figure for name, figure in drawn.items() if figure is not None}


def shared_figures(results: Sequence[RunResult]) -> dict[str, Figure]:
    """Draw the figures that can show several runs, by name; those without content are left out."""
    labels = [result.name for result in results]
    names = labels if len(labels) == 1 else [f"{place}. {label}" for place, label in enumerate(labels, 1)]
    runs = dict(zip(names, results, strict=True))
    answers = {name: (result.probs, result.labels) for name, result in runs.items() if result.has_predictions}
    drawn = {
        "risk_coverage": classes.risk_coverage(answers) if answers else None,
        "shift": shift.boxes({name: result.shift for name, result in runs.items()}, metric="accuracy"),
        "similarity": model_diagnostics.similarity({name: result.similarity for name, result in runs.items()}),
        "spectrum": model_diagnostics.spectrum({name: result.spectra for name, result in runs.items()}),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}
