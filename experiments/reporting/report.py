"""Report of evaluated runs: a self-contained HTML page with a conclusion in words, and figures as
SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure

from probattn.experiments.displayable import displayable
from probattn.experiments.evaluation.example_intervals import metric_intervals, resampled_metrics
from probattn.experiments.evaluation.kept_predictions import example_frame
from probattn.experiments.evaluation.metric_display import columns
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.evaluation.seed_statistics import Replicates, Resampled, compare
from probattn.experiments.plots import model_diagnostics, prediction_figures
from probattn.experiments.plots.style import save_figure
from probattn.experiments.reporting.conclusion import by_class, conclusion, confusion
from probattn.experiments.reporting.example_cards import cards
from probattn.experiments.reporting.html import render
from probattn.experiments.reporting.tables import Table, comparison_table
from probattn.inference.io.files import write_bytes

CLASSES = 20
"""Largest number of classes with a confusion matrix; of more classes the others are folded."""


def section(result: RunResult, *, review: str = "") -> dict[str, Any]:
    """Return the part of a report on one run: its ``result``, and what else ``templates/run.html``
    displays by name; ``review`` is the address of the page of :mod:`.review`, if there is one."""
    content = {
        "result": result,
        "conclusion": conclusion(result),
        "figures": figures(result),
        "limit": CLASSES,
        "intervals": metric_intervals(result.test, result.metrics),
        "displays": columns(result.metrics),
        "cards": cards(result),
        "domains": None,
        "review": review,
    }
    domains = result.of_kind("domain")
    if len(domains):
        rows = pd.concat([result.scores.loc[["test"]].rename({"test": "test data"}), domains])
        content["domains"] = _table(rows, corner="domain")
    if result.variants:
        variants = pd.DataFrame(result.variants).transpose()
        content["variants"] = _table(variants, corner="each latent variable")
    if result.classes:
        content["classes"] = by_class(result)
    return content


def write(
    path: Path,
    sections: Sequence[Mapping[str, Any]],
    *,
    title: str,
    verdict: Sequence[str] = (),
    tables: dict[str, Table] | None = None,
) -> None:
    """Write a report as one self-contained HTML file, atomically; of several runs their comparison
    comes first.

    Args:
        path: the file.
        sections: those of its runs, see :func:`section`.
        title: heading of the page.
        verdict: sentences on their comparison, with which the page begins.
        tables: of their comparison, by title; None makes them from the sections.
    """
    results = [of_run["result"] for of_run in sections]
    without_matrix = [name for name, run in _numbered(results).items() if not run.spectra]
    if tables is None:
        tables = {"Test data": summary_table(results)}
        if shifted := shift_table(results):
            tables["Corrupted images"] = shifted
    page = render(
        "report.html",
        title=title,
        sections=sections,
        verdict=verdict,
        tables=tables,
        figures=shared_figures(results) if len(results) > 1 else {},
        without_matrix=without_matrix,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, page.encode())


def save_figures(folder: Path, part: Mapping[str, Any]) -> None:
    """Save the figures of the part on a run as ``folder/NAME.svg``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in part["figures"].items():
        save_figure(folder / f"{name}.svg", figure)


def summary_table(results: Sequence[RunResult]) -> Table:
    """Return a row per run in the papers' scale, the best in bold where it is better than the next
    on other test examples, too."""
    runs = _numbered(results)
    rows = pd.DataFrame({name: run.metrics for name, run in runs.items()}).transpose()
    labels = [run.test.require("labels") for run in results]
    if not all(torch.equal(labels[0], others) for others in labels):
        return _table(rows, corner="run")
    resampled = {
        name: Replicates((0,), resampled_metrics(example_frame(run.test)))
        for name, run in runs.items()
    }
    return _table(rows, corner="run", resampled=resampled)


def shift_table(results: Sequence[RunResult]) -> Table | None:
    """Return the means over corruptions and severities, a row per run; None without runs on
    corrupted images."""
    shifts = {name: run.of_kind("shift") for name, run in _numbered(results).items()}
    means = {name: shift.mean(skipna=False) for name, shift in shifts.items() if len(shift)}
    if not means:
        return None
    return _table(pd.DataFrame(means).transpose(), corner="run, corrupted images")


def figures(result: RunResult) -> dict[str, Figure]:
    """Draw the figures of a run by name; those that it has nothing for are left out."""
    plots = shared_figures([result])
    training = model_diagnostics.training(result.steps, result.epochs)
    if training:
        plots["training"] = training
    if not result.classes:
        plots["predicted"] = prediction_figures.predicted(result.test)
        plots["quantiles"] = prediction_figures.quantiles(result.test)
        return plots
    plots["reliability"] = prediction_figures.reliability(result.test)
    if len(result.classes) <= CLASSES:
        plots["confusion"] = prediction_figures.confusion(confusion(result))
    if result.ood:
        plots["ood"] = prediction_figures.ood_confidence(result.test, result.ood)
    return plots


def shared_figures(results: Sequence[RunResult]) -> dict[str, Figure]:
    """Draw the figures that can show several runs, by name; those without content are left out."""
    runs = _numbered(results)
    answers = {name: run.test for name, run in runs.items() if run.classes}
    shifts = {name: run.of_kind("shift") for name, run in runs.items()}
    spectra = {name: run.spectra for name, run in runs.items()}
    plots = {
        "risk_coverage": prediction_figures.risk_coverage(answers) if answers else None,
        "shift": prediction_figures.boxes(shifts),
        "similarity": model_diagnostics.similarity(
            {name: run.similarity for name, run in runs.items()}
        ),
        "spectrum": model_diagnostics.spectrum(spectra),
    }
    return {name: figure for name, figure in plots.items() if figure}


def _numbered(results: Sequence[RunResult]) -> dict[str, RunResult]:
    """Return runs by name, several with their numbers, since names can repeat."""
    names = [displayable(run.name) for run in results]  # pandas refuses surrogates
    if len(names) > 1:
        names = [f"{place}. {name}" for place, name in enumerate(names, 1)]
    return dict(zip(names, results, strict=True))


def _table(rows: pd.DataFrame, *, corner: str, resampled: Resampled | None = None) -> Table:
    """Return a table of metrics; ``corner`` is the heading of the names, and ``resampled`` as for
    :func:`~probattn.experiments.evaluation.seed_statistics.compare`, which finds the best."""
    scores = rows.set_axis(pd.MultiIndex.from_product([rows.index, [0]]))  # one seed
    comparison = compare(scores, resampled=resampled)
    return replace(comparison_table(comparison, corner=corner), note="")
