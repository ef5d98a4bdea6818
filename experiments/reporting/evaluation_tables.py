"""What ``probattn evaluate`` prints and saves of the scores: by method, corruption and severity, and detector."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from probattn.experiments.config.settings import SettingsError
from probattn.experiments.evaluation import methods
from probattn.experiments.evaluation.evaluate import Evaluation
from probattn.experiments.evaluation.scores import from_json, mean_shift
from probattn.experiments.evaluation.seed_statistics import Comparison, compare
from probattn.experiments.plots import shift as shift_plots
from probattn.experiments.reporting import tables
from probattn.experiments.reporting.sheet import Grid
from probattn.experiments.runs.folder import read_record
from probattn.inference.metrics import DISPLAY, ood

SHIFT_METRICS = ("accuracy", "nll", "ece")


def sheets(evaluation: Evaluation) -> dict[str, Comparison | Grid]:
    """All tables of an evaluation by name."""
    name, scores = evaluation.result.name, evaluation.scores
    rows = {method: " + ".join(filter(None, (name, methods.title(method)))) for method in scores}
    found: dict[str, Comparison | Grid] = {"test": compare({rows[m]: {0: each["test"]} for m, each in scores.items()})}
    for domain in evaluation.result.domains:
        found[f"domain-{domain}"] = compare({rows[m]: {0: each["domain"][domain]} for m, each in scores.items()})
    if evaluation.result.shift:
        found["shift"] = compare({rows[m]: {0: mean_shift(each)} for m, each in scores.items()})
    for method, each in scores.items():
        for metric in SHIFT_METRICS if "shift" in each else ():
            found[f"shift-{metric}-{method}"] = _shift_grid(rows[method], each["shift"], metric)
        if "ood" in each:
            found[f"ood-{method}"] = _ood_grid(rows[method], each["ood"])
    return found


def printed(evaluation: Evaluation) -> dict[str, Table]:
    """The tables for the terminal by title: those of all methods, and details of the posterior predictive alone."""
    titles = {
        "test": "Test data",
        **{f"domain-{domain}": f"Test data, {domain}" for domain in evaluation.result.domains},
        "shift": "Corrupted test images, mean over corruptions and severities",
        f"shift-accuracy-{methods.POSTERIOR}": "Corrupted test images",
        f"ood-{methods.POSTERIOR}": "Foreign images",
    }
    found = sheets(evaluation)
    return {title: tables.terminal(found[key]) for key, title in titles.items() if key in found}


def save(run: Path, evaluation: Evaluation, *, beside: Mapping[str, Any]) -> None:
    """Writes ``tables/`` and the figures of shift.

    Args:
        run: the run's folder.
        evaluation: what came out.
        beside: shift of other runs by name, drawn beside (see :func:`shift_of`).
    """
    for folder in (run / "tables", run / "figures"):
        folder.mkdir(exist_ok=True)
    for key, sheet in sheets(evaluation).items():
        for suffix, render in (("md", tables.markdown), ("tex", tables.latex), ("csv", tables.csv)):
            (run / "tables" / f"{key}.{suffix}").write_text(render(sheet), encoding="utf-8")
    result = evaluation.result
    for metric in SHIFT_METRICS if result.shift else ():
        figure = shift_plots.boxes({**beside, result.name: result.shift}, metric=metric)
        figure.savefig(run / "figures" / f"shift-{metric}.png", dpi=150)


def shift_of(run: Path) -> dict[str, Any]:
    """The scores of a run under shift, by its name.

    Raises:
        SettingsError: no run there, or one that was not evaluated under shift.
    """
    name = read_record(run).name
    path = run / "metrics.json"
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = content.get("methods", {}).get(methods.POSTERIOR, {})
    if "shift" not in found:
        raise SettingsError(f"{run} was not evaluated under shift; do it with `probattn evaluate {run} --shift`")
    return {name: from_json(found)["shift"]}


def _shift_grid(name: str, shift: Mapping[str, Mapping[int, Mapping[str, float]]], metric: str) -> Grid:
    severities = sorted({severity for each in shift.values() for severity in each})
    rows = {corruption: [each[severity][metric] for severity in severities] for corruption, each in shift.items()}
    columns = list(zip(*rows.values(), strict=True))
    rows = {key: [*values, sum(values) / len(values)] for key, values in rows.items()}
    means = [sum(column) / len(column) for column in columns]
    rows["mean"] = [*means, sum(means) / len(means)]
    display = DISPLAY[metric]
    heads = [*(f"severity {severity}" for severity in severities), "mean"]
    return Grid(f"{name}, {display.title}", heads, rows, scale=display.scale)


def _ood_grid(name: str, found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Grid:
    rows = {
        f"{which}, {ood.DETECTORS[detector]}": [values[key] for key in ood.DISPLAY]
        for which, detectors in found.items()
        for detector, values in detectors.items()
    }
    note = (
        "in, out: in-distribution or out-of-distribution images are the positive class; "
        "FPR95: share of the other class at 95 % of the positive one."
    )
    return Grid(f"{name}, foreign images", [metric.title for metric in ood.DISPLAY.values()], rows, 100, note=note)
