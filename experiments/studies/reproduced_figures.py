"""Figures of the papers, drawn from our runs."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from probattn.experiments.evaluation.evaluate import evaluate
from probattn.experiments.evaluation.evaluated_run import read_evaluated_run
from probattn.experiments.evaluation.run_result import RunResult
from probattn.experiments.plots import classes, model_diagnostics
from probattn.experiments.plots import shift as shift_plots
from probattn.experiments.studies.entries import Part
from probattn.experiments.studies.reproduce import Job, Plan

Figures = dict[str, Figure | None]
"""Figures by the end of their name; None where there is nothing to draw."""


def shift(plan: Plan, part: Part) -> Figures:
    """Draw each metric by corruption, a box per row over severities; of the first seed (KEP-SVGP paper, Figs. 2, 5)."""
    runs = {}
    for name, row in part.rows.items():
        run = read_evaluated_run(_first(plan, part, name).folder)
        runs[name] = {
            corruption: {level: values for level, values in levels.items() if level in part.severities}
            for corruption, levels in run.scores[row.method].shift.items()
            if corruption in part.corruptions
        }
    return {column.metric: shift_plots.boxes(runs, metric=column.metric) for column in part.columns}


def confidence(plan: Plan, part: Part) -> Figures:
    """Draw the confidence on right, wrong and OOD images of the first seed, a figure per row (Fig. 3)."""
    figures: Figures = {}
    for name, row in part.rows.items():
        run = read_evaluated_run(_first(plan, part, name).folder)
        sets = [f"ood/{each}" for each in part.ood if f"ood/{each}" in run.test_sets]
        found = run.predictions(["test", *sets], row.method)
        figures[_slug(name)] = classes.ood_confidence(
            found["test"], {each.removeprefix("ood/"): found[each] for each in sets}
        )
    return figures


def spectrum(plan: Plan, part: Part) -> Figures:
    """Draw the cumulative share of the singular values by layer, a line per row, of the first seed (Fig. 4)."""
    results = _results(plan, part)
    return {"": model_diagnostics.spectrum({name: result.spectra for name, result in results.items()})}


def similarity(plan: Plan, part: Part) -> Figures:
    """Draw the mean cosine between tokens by layer, a line per row, of the first seed (CGP paper, Figs. III, IV)."""
    results = _results(plan, part)
    return {"": model_diagnostics.similarity({name: result.similarity for name, result in results.items()})}


FIGURES: dict[str, Callable[[Plan, Part], Figures]] = {
    "shift": shift,
    "confidence": confidence,
    "spectrum": spectrum,
    "similarity": similarity,
}
"""Kinds of figures by name."""


def _first(plan: Plan, part: Part, name: str) -> Job:
    return plan.jobs_of(part.rows[name].model)[0]


def _results(plan: Plan, part: Part) -> dict[str, RunResult]:
    """Return the results of the first seed of each row; the predictions are stored already."""
    jobs = {name: _first(plan, part, name) for name in part.rows}
    return {name: evaluate(job.folder, root=job.root).result for name, job in jobs.items()}


def _slug(name: str) -> str:
    return "-".join("".join(each if each.isalnum() else " " for each in name.lower()).split())
