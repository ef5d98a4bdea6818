"""Comparisons of rows by subject, with their tables and figures: ``probattn compare``."""

import csv
import functools
import io
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from probattn.experiments.evaluation import generated_files
from probattn.experiments.evaluation.metric_display import DETECTORS, OOD_DISPLAY, MetricDisplay
from probattn.experiments.evaluation.scores import Scores
from probattn.experiments.evaluation.seed_statistics import Comparison, MetricsBySeed, compare
from probattn.experiments.plots import shift as shift_plots
from probattn.experiments.plots.differences import differences
from probattn.experiments.plots.svg import save_figure
from probattn.experiments.reporting import table_formats
from probattn.experiments.studies.collect import ENSEMBLES, Rows
from probattn.inference.io.files import write_bytes

TEST, SHIFT, DOMAIN = "test", "shift", "domain-"
SHIFT_METRICS = ("accuracy", "nll", "ece")


def comparisons(rows: Rows) -> dict[str, Comparison]:
    """Return the comparisons by subject: ``test``, ``domain-NAME``, ``shift``, ``ood-SET-METRIC``."""
    found = {TEST: _compare(_select(rows, lambda scores: scores.test), rows, note=_size(rows, "test"))}
    for name in _names(rows, lambda scores: scores.domain):
        selected = _select(rows, lambda scores, name=name: scores.domain.get(name, {}))
        found[f"{DOMAIN}{name}"] = _compare(selected, rows, note=_size(rows, f"domain/{name}"))
    source = f"Corrupted images: {rows.shift_source}." if rows.shift_source else ""
    note = f"{_size(rows, 'test')} {source}".strip()
    found[SHIFT] = _compare(_select(rows, lambda scores: scores.mean_shift), rows, note=note)
    ood_sets = _names(rows, lambda scores: scores.ood)
    for name, (key, metric) in itertools.product(ood_sets, OOD_DISPLAY.items()):
        selected = _select(rows, functools.partial(_detection, name=name, key=key))
        detectors = dict.fromkeys(each for seeds in selected.values() for run in seeds.values() for each in run)
        display = {each: MetricDisplay(DETECTORS[each], metric.scale, metric.higher_is_better) for each in detectors}
        found[f"ood-{name}-{key}"] = _compare(selected, rows, metrics=display)
    return {key: comparison for key, comparison in found.items() if comparison is not None}


def title(subject: str) -> str:
    """Return the title of a comparison on a subject."""
    if subject == TEST:
        return "Test data"
    if subject.startswith(DOMAIN):
        return f"Test data, {subject.removeprefix(DOMAIN)}"
    if subject == SHIFT:
        return "Corrupted test images, mean over corruptions and severities"
    name, _, key = subject.removeprefix("ood-").rpartition("-")
    return f"Detection of {name}, {OOD_DISPLAY[key].title}"


def figures(rows: Rows, found: Mapping[str, Comparison]) -> dict[str, Figure]:
    """Draw the figures of comparisons; return them by name."""
    subjects = [key for key in found if key in (TEST, SHIFT) or key.startswith(DOMAIN) or key.endswith("-auroc")]
    drawn = {f"{key}-differences": differences(found[key]) for key in subjects}
    shifted = {label: _mean_over_seeds(rows.scores[label]) for label in rows.plain}
    for metric in SHIFT_METRICS:
        drawn[f"shift-{metric}"] = shift_plots.boxes(shifted, metric=metric)
    return {key: figure for key, figure in drawn.items() if figure is not None}


def write(folder: Path, rows: Rows, found: Mapping[str, Comparison]) -> list[Path]:
    """Write each comparison as Markdown, LaTeX and CSV, the values of each seed, and the figures; return the paths.

    Files of a former comparison in this folder are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generated_files.remove_outdated(folder, rows.sources)
    paths = [path for key, comparison in found.items() for path in table_formats.save(folder / key, comparison)]
    paths.append(folder / "seeds.csv")
    write_bytes(paths[-1], seeds_csv(rows).encode())
    for key, figure in figures(rows, found).items():
        paths.append(folder / f"{key}.svg")
        save_figure(paths[-1], figure)
    generated_files.record(folder, paths, rows.sources)
    return paths


def seeds_csv(rows: Rows) -> str:
    """Return the unscaled metrics of each run as CSV, for other tests than the intervals of the tables.

    A line has row, seed, subject (a test set; ``shift`` is the mean over corruptions and severities), the OOD detector
    if there is one, metric and value. Ensembles, which have no seed, and missing values are left out.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["row", "seed", "subject", "detector", "metric", "value"])
    for row in itertools.chain.from_iterable(group for name, group in rows.groups.items() if name != ENSEMBLES):
        for seed, scores in rows.scores[row].items():
            for subject, detector, values in _subjects(scores):
                texts = map(table_formats.csv_text, (subject, detector))
                start = [table_formats.csv_text(row), seed, *texts]
                writer.writerows([*start, key, repr(float(value))] for key, value in values.items() if value == value)
    return file.getvalue()


def _subjects(scores: Scores) -> Iterator[tuple[str, str, Mapping[str, float]]]:
    """Yield subject, OOD detector ("" for other subjects) and metrics."""
    yield TEST, "", scores.test
    for name, values in scores.domain.items():
        yield f"{DOMAIN}{name}", "", values
    yield SHIFT, "", scores.mean_shift
    for name, detectors in scores.ood.items():
        for detector, values in detectors.items():
            yield f"ood-{name}", detector, values


def _compare(
    scores: MetricsBySeed, rows: Rows, *, metrics: Mapping[str, MetricDisplay] | None = None, note: str = ""
) -> Comparison | None:
    if not scores:
        return None
    baselines = {row: other for row, other in rows.baselines.items() if row in scores and other in scores}
    groups = {name: [row for row in group if row in scores] for name, group in rows.groups.items()}
    groups = {name: group for name, group in groups.items() if group}
    compared = compare(scores, baselines=baselines, groups=groups, metrics=metrics)
    return replace(compared, note=f"{note} {rows.note}".strip())


def _size(rows: Rows, name: str) -> str:
    """Return the sentence below a table that says how many examples its test set has; empty if that is unknown."""
    return f"n = {rows.sizes[name]:,}." if name in rows.sizes else ""


def _select(rows: Rows, select: Callable[[Scores], Mapping[str, float]]) -> MetricsBySeed:
    """Return row → seed → the selected part of its scores; rows without it are left out."""
    selected = {
        label: {seed: values for seed, scores in seeds.items() if (values := select(scores))}
        for label, seeds in rows.scores.items()
    }
    return {label: seeds for label, seeds in selected.items() if seeds}


def _names(rows: Rows, select: Callable[[Scores], Mapping[str, object]]) -> list[str]:
    """Return the names of the test sets of a kind that any run has scores on."""
    return list(dict.fromkeys(name for seeds in rows.scores.values() for run in seeds.values() for name in select(run)))


def _detection(scores: Scores, *, name: str, key: str) -> dict[str, float]:
    """Return one metric of detecting an OOD set, by detector."""
    return {detector: values[key] for detector, values in scores.ood.get(name, {}).items()}


def _mean_over_seeds(seeds: Mapping[int, Scores]) -> dict[str, dict[int, dict[str, float]]]:
    """Return corruption → severity → the mean of each metric over the seeds that were evaluated under shift."""
    runs = [scores.shift for scores in seeds.values() if scores.shift]
    if not runs:
        return {}
    return {
        corruption: {
            severity: {key: sum(run[corruption][severity][key] for run in runs) / len(runs) for key in SHIFT_METRICS}
            for severity in severities
            if all(severity in run.get(corruption, {}) for run in runs)
        }
        for corruption, severities in runs[0].items()
        if all(corruption in run for run in runs)
    }
