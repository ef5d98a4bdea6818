"""Comparisons of runs over seeds, from results in the wide form: tables in Markdown and LaTeX, and a figure."""

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.evaluation.methods import ENSEMBLE, row_label
from probattn.experiments.evaluation.metric_display import DETECTORS, OOD_DISPLAY, MetricDisplay, displays
from probattn.experiments.evaluation.scores import KEYS, mean_shift
from probattn.experiments.evaluation.seed_statistics import Cell, Comparison, Resampled, best_rows, compare
from probattn.experiments.plots.differences import differences
from probattn.experiments.plots.style import save_figure
from probattn.experiments.reporting.table_formats import latex, markdown
from probattn.experiments.reporting.tables import Table, comparison_table, plain_table
from probattn.experiments.studies import collect
from probattn.inference.io.files import write_bytes

SINGLE_SEED = "With one seed, intervals are percentiles over 300 paired resamples of the test examples."
Baselines = Mapping[str, str]
"""Run → the run that it is compared with, possibly itself, which compares its methods."""


def compare_results(
    results: pd.DataFrame,
    subject: str = "test",
    *,
    metric: str = "auroc",
    baselines: Baselines | None = None,
    resampled: Resampled | None = None,
) -> Comparison:
    """Compare runs on one subject: means over seeds, and paired differences to the softmax run by the same method.

    Args:
        results: frame in the wide form, with columns ``run, seed, method, set, n`` and metrics, unscaled.
        subject: a test set, such as ``test`` or ``ood/NAME``, or ``shift`` for the mean over corruptions.
        metric: metric of detection, for OOD sets, whose columns are the detectors.
        baselines: None takes the run with ``softmax`` in its name that begins most alike.
        resampled: row → metric → values on resampled test examples, for intervals with one seed.

    Raises:
        ValueError: no results on the subject, or results on different numbers of examples.
    """
    frame = mean_shift(results) if subject == "shift" else results[results["set"] == subject]
    sizes = sorted(frame["n"].unique())
    if len(sizes) != 1:
        where = f"on {' and '.join(f'{size:g}' for size in sizes)} examples" if sizes else "nowhere"
        raise ValueError(f"runs were scored on {subject} {where}: compare runs that were scored on the same test data")
    baselines = _softmax(frame["run"].unique()) if baselines is None else baselines
    scores, keys = {}, {}
    for key, group in frame.drop(columns=["set", "n"]).groupby(["run", "method"], sort=False):
        values = group.drop(columns=["run", "method"]).dropna(axis=1, how="all").set_index("seed")
        keys[row_label(*key)], scores[row_label(*key)] = key, values.to_dict("index")
    pairs = {row: _baseline(*key, baselines, scores) for row, key in keys.items() if not key[1].startswith(ENSEMBLE)}
    single = f" {SINGLE_SEED}" if resampled and frame["seed"].nunique() == 1 else ""
    return compare(
        scores,
        baselines={row: other for row, other in pairs.items() if other in scores and other != row},
        groups=_groups(scores),
        metrics=_columns(subject, frame.dropna(axis=1, how="all").columns, metric),
        resampled=resampled,
        note=f"n = {sizes[0]:,g}.{single}",
    )


def comparisons(
    results: pd.DataFrame,
    *,
    baselines: Baselines | None = None,
    resampled: Mapping[str, Resampled] | None = None,
) -> dict[str, Comparison]:
    """Return the comparisons on all subjects by title.

    Args:
        results, baselines: as for :func:`compare_results`.
        resampled: test set → values on its resampled examples.
    """
    values = resampled or {}
    return {
        title: compare_results(results, subject, baselines=baselines, resampled=values.get(subject))
        for title, subject in _subjects(results["set"])
    }


def from_statistics(lines: pd.DataFrame) -> dict[str, Comparison]:
    """Return the comparisons on all subjects by title, of statistics over seeds that were stored without the seeds.

    Args:
        lines: columns ``run, method, set, metric, mean, std, n, baseline, baseline_method, difference, low, high``.
    """
    compared = {}
    names = lines["set"].replace("^shift/.*", "shift", regex=True)
    for title, subject in _subjects(lines["set"]):
        columns = _columns(subject, set(lines[names == subject]["metric"]))
        cells: dict[str, dict[str, Cell]] = {}
        baselines = {}
        for line in lines[(names == subject) & lines["metric"].isin(columns)].to_dict("records"):
            row = row_label(line["run"], line["method"])
            numbers = {key: None if pd.isna(line[key]) else line[key] for key in ("std", "difference", "low", "high")}
            cell = Cell((line["mean"],) * int(line["n"]), line["mean"], **numbers)
            cells.setdefault(row, dict.fromkeys(columns, Cell((), math.nan)))[line["metric"]] = cell
            if not pd.isna(line["baseline"]):
                baselines[row] = row_label(line["baseline"], line["baseline_method"])
        groups = _groups(cells) if cells else {}
        compared[title] = Comparison(columns, groups, baselines, cells, best_rows(cells, groups, columns))
    return compared


def read(paths: Sequence[Path]) -> tuple[pd.DataFrame, dict[str, Comparison]]:
    """Return the results of evaluated runs in the wide form, and their comparisons by title.

    Args:
        paths: folders of runs, folders that hold them at any depth, or CSV files. Files of results or of statistics
            over seeds are compared; others, and those of several studies, have no comparison.

    Raises:
        SettingsError: no run, or runs that cannot be compared.
    """
    tables = [path for path in paths if path.suffix == ".csv"]
    if not tables:
        runs = collect.read_runs(paths)
        results = collect.to_rows(runs)
        options = {"baselines": collect.baselines(runs), "resampled": collect.resampled(runs)}
        return results, comparisons(results, **options)
    if len(tables) < len(paths):
        raise SettingsError("compare either folders of runs or tables of results, not both")
    results = pd.concat(map(pd.read_csv, tables), ignore_index=True)
    if {"metric", "mean", "std"} <= set(results):
        return results, from_statistics(results)
    return results, comparisons(results) if set(KEYS) <= set(results) and "study" not in results else {}


def tables(results: pd.DataFrame, compared: Mapping[str, Comparison]) -> dict[str, Table]:
    """Return the tables of comparisons by title; without a comparison, that of the results as they are."""
    rows = results.itertuples(index=False, name=None)
    shown = {title: comparison_table(comparison) for title, comparison in compared.items()}
    return shown or {"Results": plain_table(results.columns, rows)}


def to_latex(comparison: Comparison) -> str:
    r"""Return the LaTeX ``tabular`` of a comparison, which needs ``\usepackage{booktabs}``."""
    return latex(comparison_table(comparison))


def write(folder: Path, results: pd.DataFrame, compared: Mapping[str, Comparison]) -> None:
    """Write ``results.csv``, all tables as ``comparison.md`` and ``comparison.tex``, and ``differences.svg``."""
    shown = tables(results, compared).items()
    texts = {
        "results.csv": results.to_csv(index=False, lineterminator="\n"),
        "comparison.md": "\n".join(f"# {title}\n\n{markdown(table)}" for title, table in shown),
        "comparison.tex": "\n".join(f"% {title}\n{latex(table)}" for title, table in shown),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_bytes(folder / name, text.encode(errors="backslashreplace"))
    (folder / "differences.svg").unlink(missing_ok=True)
    figures = (differences(comparison) for comparison in compared.values())
    if figure := next(figures, None):
        save_figure(folder / "differences.svg", figure)


def _subjects(sets: pd.Series) -> Iterator[tuple[str, str]]:
    """Yield title and subject of each comparison on some test sets; classes have none."""
    for name in dict.fromkeys("shift" if name.startswith("shift/") else name for name in sets):
        kind, _, rest = name.partition("/")
        titles = {"valid": "Validation data", "test": "Test data", "domain": f"Test data, {rest}"}
        titles |= {"shift": "Corrupted test images, mean", "ood": f"Detection of {rest}, AUROC"}
        if kind in titles:
            yield titles[kind], name


def _columns(subject: str, known: Collection[str], metric: str = "auroc") -> dict[str, MetricDisplay]:
    """Return the columns of a table: metrics that are known, of an OOD set those of the detectors."""
    columns = displays(known)
    if subject.startswith("ood/"):
        columns = {f"{key}_{metric}": OOD_DISPLAY[metric]._replace(title=name) for key, name in DETECTORS.items()}
    return {key: display for key, display in columns.items() if key in known}


def _groups(rows: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return single models and ensembles as groups; one group without ensembles."""
    ensembles = tuple(row for row in rows if f", {ENSEMBLE}" in row)
    single = tuple(row for row in rows if row not in ensembles)
    return {"single models": single, "ensembles": ensembles} if ensembles else {"": single}


def _softmax(runs: Iterable[str]) -> dict[str, str]:
    """Return the softmax run of each run: itself, or the one whose name begins most alike."""
    softmax = [run for run in runs if "softmax" in run.partition(" (")[0]]

    def closest(run: str) -> str:
        return max(softmax, key=lambda other: (other == run, len(os.path.commonprefix([run, other]))))

    return {run: closest(run) for run in runs if softmax}


def _baseline(run: str, method: str, baselines: Mapping[str, str], scores: Mapping[str, Mapping]) -> str:
    """Return the row that one is compared with: its twin by the same method, or by the last part of it, or alone.

    ``laplace+temperature`` is compared with the ``temperature`` of a twin without ``laplace``. Methods of a run that is
    its own twin are compared with it alone.
    """
    twin = baselines.get(run, "")
    if twin in ("", run):
        return twin
    parts, seeds = method.split("+"), scores[row_label(run, method)].keys() & scores.get(twin, {}).keys()
    candidates = [row_label(twin, "+".join(parts[start:])) for start in range(len(parts))]
    return next((row for row in candidates if seeds and seeds <= scores.get(row, {}).keys()), twin)
