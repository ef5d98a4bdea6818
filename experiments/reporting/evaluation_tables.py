"""Tables and figures of one evaluation: by method, corruption and severity, OOD set and detector."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.evaluation import methods
from probattn.experiments.evaluation.evaluate import Evaluation
from probattn.experiments.evaluation.evaluated_run import EvaluatedRun, check_comparable, read_evaluated_run
from probattn.experiments.evaluation.metric_display import DETECTORS, DISPLAY, OOD_DISPLAY
from probattn.experiments.evaluation.scores import Scores
from probattn.experiments.evaluation.seed_statistics import Comparison, compare
from probattn.experiments.plots import shift as shift_plots
from probattn.experiments.plots.svg import save_figure
from probattn.experiments.reporting import table_formats
from probattn.experiments.reporting.table import Grid, Table, to_table

SHIFT_METRICS = ("accuracy", "nll", "ece")


def evaluation_tables(evaluation: Evaluation) -> dict[str, Comparison | Grid]:
    """Return the sources of all tables of an evaluation, by name."""
    result = evaluation.result
    scores = {methods.row_label(result.label, method): each for method, each in evaluation.scores.items()}
    sizes, source = evaluation.sizes, shift_note(result.shift_source)

    def table(values: Callable[[Scores], Mapping[str, float]], name: str, note: str = "") -> Comparison:
        compared = compare({row: {0: values(each)} for row, each in scores.items()})
        return replace(compared, note=join_notes(size_note(sizes, name), note))

    found: dict[str, Comparison | Grid] = {"test": table(lambda each: each.test, "test")}
    for domain in result.domains:
        found[f"domain-{domain}"] = table(lambda each, domain=domain: each.domain[domain], f"domain/{domain}")
    if result.shift:
        found["shift"] = table(lambda each: each.mean_shift, "test", source)
    for method, (row, each) in zip(evaluation.scores, scores.items(), strict=True):
        for metric in SHIFT_METRICS if each.shift else ():
            found[f"shift-{metric}-{method}"] = _shift_grid(row, each.shift, metric, note=source)
        if each.ood:
            found[f"ood-{method}"] = _ood_grid(row, each.ood)
    return found


def terminal_tables(evaluation: Evaluation) -> dict[str, Table]:
    """Return the tables for the terminal by title: those of all methods, details of the posterior predictive only."""
    titles = {
        "test": "Test data",
        **{f"domain-{domain}": f"Test data, {domain}" for domain in evaluation.result.domains},
        "shift": "Corrupted test images, mean over corruptions and severities",
        f"shift-accuracy-{methods.POSTERIOR}": "Corrupted test images",
        f"ood-{methods.POSTERIOR}": "Out-of-distribution (OOD) images",
    }
    found = evaluation_tables(evaluation)
    return {title: to_table(found[key]) for key, title in titles.items() if key in found}


def save(run: Path, evaluation: Evaluation, *, baselines: Sequence[EvaluatedRun] = ()) -> list[Path]:
    """Write ``tables/`` and the figures of ``shift``; return the paths.

    Args:
        run: the run's folder.
        evaluation: the result.
        baselines: evaluated runs whose metrics under shift are drawn in the same figures.

    Raises:
        SettingsError: a baseline with other corrupted images, samples or libraries than the run.
    """
    drawn = {baseline.preset: baseline.scores[methods.POSTERIOR].shift for baseline in baselines}
    if baselines:
        check_comparable([read_evaluated_run(run), *baselines])
    for folder in (run / "tables", run / "figures"):
        folder.mkdir(exist_ok=True)
    paths = []
    for key, source in evaluation_tables(evaluation).items():
        paths += table_formats.save(run / "tables" / key, source)
    result = evaluation.result
    for metric in SHIFT_METRICS if result.shift else ():
        figure = shift_plots.boxes({**drawn, result.label: result.shift}, metric=metric)
        paths.append(run / "figures" / f"shift-{metric}.svg")
        save_figure(paths[-1], figure)
    return paths


def read_baseline(folder: Path) -> EvaluatedRun:
    """Read an evaluated run that has scores under shift.

    Raises:
        SettingsError: no run in that folder, or one that was not evaluated under shift or has changed since.
    """
    run = read_evaluated_run(folder)
    if not run.scores[methods.POSTERIOR].shift:
        raise SettingsError(f"{folder} was not evaluated under shift; do it with `{run.command} --shift`")
    return run


def size_note(sizes: Mapping[str, int], name: str) -> str:
    """Return the sentence below a table that says how many examples its test set has; empty if that is unknown."""
    return f"n = {sizes[name]:,}." if name in sizes else ""


def join_notes(*notes: str) -> str:
    """Join the sentences below a table, without empty ones."""
    return " ".join(filter(None, notes))


def shift_note(source: str) -> str:
    """Return the sentence below a table that says where its corrupted images are from; empty if that is unknown."""
    return f"Corrupted images: {source}." if source else ""


def _shift_grid(name: str, shift: Mapping[str, Mapping[int, Mapping[str, float]]], metric: str, *, note: str) -> Grid:
    severities = sorted({severity for each in shift.values() for severity in each})
    rows = {corruption: [each[severity][metric] for severity in severities] for corruption, each in shift.items()}
    rows["mean"] = [_mean(column) for column in zip(*rows.values(), strict=True)]
    rows = {key: [*values, _mean(values)] for key, values in rows.items()}
    display = DISPLAY[metric]
    columns = [*(f"severity {severity}" for severity in severities), "mean"]
    return Grid(f"{name}, {display.title}", columns, rows, scale=display.scale, note=note)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _ood_grid(name: str, detection: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Grid:
    rows = {
        f"{ood_set}, {DETECTORS[detector]}": [values[key] for key in OOD_DISPLAY]
        for ood_set, detectors in detection.items()
        for detector, values in detectors.items()
    }
    note = (
        "in, out: in-distribution or out-of-distribution images are the positive class; "
        "FPR95: share of the other class at 95 % of the positive one."
    )
    return Grid(f"{name}, OOD images", [metric.title for metric in OOD_DISPLAY.values()], rows, 100, note=note)
