"""What ``probattn compare`` makes of rows: comparisons by subject, their files and figures."""

import functools
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from probattn.experiments.evaluation.scores import mean_shift
from probattn.experiments.evaluation.seed_statistics import Comparison, Scores, compare
from probattn.experiments.plots import comparison as comparison_plots
from probattn.experiments.plots import shift as shift_plots
from probattn.experiments.reporting import tables
from probattn.experiments.studies.collect import Rows
from probattn.inference.metrics import MetricDisplay, ood

TEST, SHIFT, DOMAIN = "test", "shift", "domain-"
SHIFT_FIGURES = ("accuracy", "nll", "ece")


def comparisons(rows: Rows) -> dict[str, Comparison]:
    """Comparisons by subject that any row has scores of: ``test``, ``domain-NAME``, ``shift``, ``ood-SET-METRIC``."""
    found = {TEST: _compare(_picked(rows, lambda scores: scores["test"]), rows)}
    for name in _names(rows, "domain"):
        picked = _picked(rows, lambda scores, name=name: scores.get("domain", {}).get(name, {}))
        found[f"{DOMAIN}{name}"] = _compare(picked, rows)
    found[SHIFT] = _compare(_picked(rows, mean_shift), rows)
    for name, (key, metric) in itertools.product(_names(rows, "ood"), ood.DISPLAY.items()):
        scores = _picked(rows, functools.partial(_detection, name=name, key=key))
        columns = dict.fromkeys(column for seeds in scores.values() for run in seeds.values() for column in run)
        shown = {each: MetricDisplay(ood.DETECTORS[each], metric.scale, metric.higher_is_better) for each in columns}
        found[f"ood-{name}-{key}"] = _compare(scores, rows, metrics=shown)
    return {key: comparison for key, comparison in found.items() if comparison is not None}


def title(subject: str) -> str:
    """What a comparison is about, in words."""
    if subject == TEST:
        return "Test data"
    if subject.startswith(DOMAIN):
        return f"Test data, {subject.removeprefix(DOMAIN)}"
    if subject == SHIFT:
        return "Corrupted test images, mean over corruptions and severities"
    name, _, key = subject.removeprefix("ood-").rpartition("-")
    return f"Detection of {name}, {ood.DISPLAY[key].title}"


def figures(rows: Rows, found: Mapping[str, Comparison]) -> dict[str, Figure]:
    """The figures of a comparison by name."""
    whole = [key for key in found if key in (TEST, SHIFT) or key.startswith(DOMAIN) or key.endswith("-auroc")]
    drawn = {key: comparison_plots.panels(found[key]) for key in whole}
    shifted = {label: _mean_over_seeds(rows.scores[label]) for label in rows.plain}
    for metric in SHIFT_FIGURES:
        drawn[f"shift-{metric}"] = shift_plots.boxes(shifted, metric=metric)
        drawn[f"severity-{metric}"] = shift_plots.by_severity(shifted, metric=metric)
    return {key: figure for key, figure in drawn.items() if figure is not None}


def write(folder: Path, rows: Rows, found: Mapping[str, Comparison]) -> list[Path]:
    """Writes each comparison as Markdown, LaTeX and CSV, and the figures; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for key, comparison in found.items():
        for suffix, render in (("md", tables.markdown), ("tex", tables.latex), ("csv", tables.csv)):
            paths.append(folder / f"{key}.{suffix}")
            paths[-1].write_text(render(comparison), encoding="utf-8")
    for key, figure in figures(rows, found).items():
        paths.append(folder / f"{key}.png")
        figure.savefig(paths[-1], dpi=150)
    return paths


def _compare(scores: Scores, rows: Rows, *, metrics: Mapping[str, MetricDisplay] | None = None) -> Comparison | None:
    if not scores:
        return None
    baselines = {row: other for row, other in rows.baselines.items() if row in scores and other in scores}
    groups = {name: [row for row in group if row in scores] for name, group in rows.groups.items()}
    groups = {name: group for name, group in groups.items() if group}
    return compare(scores, baselines=baselines, groups=groups, metrics=metrics)


def _picked(rows: Rows, pick: Callable[[Mapping[str, Any]], Mapping[str, float]]) -> Scores:
    """Row → seed → what is picked of its scores; without rows that have nothing of it."""
    found = {}
    for label, seeds in rows.scores.items():
        each = {seed: values for seed, scores in seeds.items() if (values := pick(scores))}
        if each:
            found[label] = each
    return found


def _names(rows: Rows, kind: str) -> list[str]:
    """The sets of a kind that any run has scores of."""
    found = (name for seeds in rows.scores.values() for run in seeds.values() for name in run.get(kind, ()))
    return list(dict.fromkeys(found))


def _detection(scores: Mapping[str, Any], *, name: str, key: str) -> dict[str, float]:
    """Detector → the metric of detecting a foreign set."""
    return {detector: values[key] for detector, values in scores.get("ood", {}).get(name, {}).items()}


def _mean_over_seeds(seeds: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[int, dict[str, float]]]:
    """Corruption → severity → the mean of each metric over the seeds that have it."""
    runs = [scores["shift"] for scores in seeds.values() if "shift" in scores]
    if not runs:
        return {}
    return {
        corruption: {
            severity: {key: sum(run[corruption][severity][key] for run in runs) / len(runs) for key in SHIFT_FIGURES}
            for severity in severities
            if all(severity in run.get(corruption, {}) for run in runs)
        }
        for corruption, severities in runs[0].items()
        if all(corruption in run for run in runs)
    }
