"""Tables and figures of one evaluation: by method, corruption and severity, OOD set and detector."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table as RichTable

from probattn.experiments.config.settings import SettingsError
from probattn.experiments.evaluation import methods
from probattn.experiments.evaluation.evaluate import Evaluation
from probattn.experiments.evaluation.scores import Scores
from probattn.experiments.evaluation.seed_statistics import Comparison, compare
from probattn.experiments.plots import shift as shift_plots
from probattn.experiments.plots.style import save_figure
from probattn.experiments.reporting import table_formats
from probattn.experiments.reporting.table import Grid, to_table
from probattn.experiments.runs.folder import read_record
from probattn.inference.io.sealed_files import read_json
from probattn.inference.metrics import DISPLAY, ood

SHIFT_METRICS = ("accuracy", "nll", "ece")


def evaluation_tables(evaluation: Evaluation) -> dict[str, Comparison | Grid]:
    """Return the sources of all tables of an evaluation, by name."""
    result = evaluation.result
    scores = {methods.row_label(result.label, method): each for method, each in evaluation.scores.items()}
    found: dict[str, Comparison | Grid] = {"test": compare({row: {0: each.test} for row, each in scores.items()})}
    for domain in result.domains:
        found[f"domain-{domain}"] = compare({row: {0: each.domain[domain]} for row, each in scores.items()})
    if result.shift:
        found["shift"] = compare({row: {0: each.mean_shift} for row, each in scores.items()})
    for method, (row, each) in zip(evaluation.scores, scores.items(), strict=True):
        for metric in SHIFT_METRICS if each.shift else ():
            found[f"shift-{metric}-{method}"] = _shift_grid(row, each.shift, metric)
        if each.ood:
            found[f"ood-{method}"] = _ood_grid(row, each.ood)
    return found


def terminal_tables(evaluation: Evaluation) -> dict[str, RichTable]:
    """Return the tables for the terminal by title: those of all methods, details of the posterior predictive only."""
    titles = {
        "test": "Test data",
        **{f"domain-{domain}": f"Test data, {domain}" for domain in evaluation.result.domains},
        "shift": "Corrupted test images, mean over corruptions and severities",
        f"shift-accuracy-{methods.POSTERIOR}": "Corrupted test images",
        f"ood-{methods.POSTERIOR}": "Out-of-distribution (OOD) images",
    }
    found = evaluation_tables(evaluation)
    return {title: table_formats.terminal(to_table(found[key])) for key, title in titles.items() if key in found}


def save(run: Path, evaluation: Evaluation, *, baselines: Mapping[str, Mapping]) -> None:
    """Write ``tables/`` and the figures of ``shift``.

    Args:
        run: the run's folder.
        evaluation: the result.
        baselines: metrics under shift of other runs by name (see :func:`load_shift`), drawn in the same figures.
    """
    for folder in (run / "tables", run / "figures"):
        folder.mkdir(exist_ok=True)
    for key, source in evaluation_tables(evaluation).items():
        table_formats.save(run / "tables" / key, source)
    result = evaluation.result
    for metric in SHIFT_METRICS if result.shift else ():
        figure = shift_plots.boxes({**baselines, result.label: result.shift}, metric=metric)
        save_figure(run / "figures" / f"shift-{metric}.png", figure)


def load_shift(run: Path) -> dict[str, Mapping]:
    """Return the name of an evaluated run with its metrics by corruption and severity.

    Raises:
        SettingsError: no run in that folder, or a run that was not evaluated under shift.
    """
    name = read_record(run).name
    path = run / "metrics.json"
    content = read_json(path, advice="evaluate the run again") if path.exists() else {}
    scores = content.get("methods", {}).get(methods.POSTERIOR, {})
    if "shift" not in scores:
        raise SettingsError(f"{run} was not evaluated under shift; do it with `probattn evaluate {run} --shift`")
    return {name: Scores.from_json(scores).shift}


def _shift_grid(name: str, shift: Mapping[str, Mapping[int, Mapping[str, float]]], metric: str) -> Grid:
    severities = sorted({severity for each in shift.values() for severity in each})
    rows = {corruption: [each[severity][metric] for severity in severities] for corruption, each in shift.items()}
    rows["mean"] = [_mean(column) for column in zip(*rows.values(), strict=True)]
    rows = {key: [*values, _mean(values)] for key, values in rows.items()}
    display = DISPLAY[metric]
    columns = [*(f"severity {severity}" for severity in severities), "mean"]
    return Grid(f"{name}, {display.title}", columns, rows, scale=display.scale)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _ood_grid(name: str, detection: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Grid:
    rows = {
        f"{ood_set}, {ood.DETECTORS[detector]}": [values[key] for key in ood.DISPLAY]
        for ood_set, detectors in detection.items()
        for detector, values in detectors.items()
    }
    note = (
        "in, out: in-distribution or out-of-distribution images are the positive class; "
        "FPR95: share of the other class at 95 % of the positive one."
    )
    return Grid(f"{name}, OOD images", [metric.title for metric in ood.DISPLAY.values()], rows, 100, note=note)
