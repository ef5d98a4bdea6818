"""Comparisons of runs over seeds, from results in the wide form: tables in Markdown and LaTeX, and a figure."""

import functools
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.evaluation.methods import ENSEMBLE, POSTERIOR, row_label
from probattn.experiments.evaluation.metric_display import DETECTORS, OOD_DISPLAY, MetricDisplay, displays
from probattn.experiments.evaluation.scores import KEYS, mean_shift
from probattn.experiments.evaluation.seed_statistics import Cell, Comparison, Resampled, best_rows, compare
from probattn.experiments.plots.differences import differences
from probattn.experiments.plots.svg import save_figure
from probattn.experiments.reporting.table_formats import latex, markdown
from probattn.experiments.reporting.tables import comparison_table
from probattn.experiments.studies.collect import baselines as softmax_twins
from probattn.experiments.studies.collect import read_runs, resampled, to_rows
from probattn.inference.io.files import write_bytes

SINGLE_SEED = "With one seed, intervals are percentiles over 1,000 paired resamples of the test examples."


def compare_results(
    results: pd.DataFrame,
    subject: str = "test",
    *,
    metric: str = "auroc",
    baselines: Mapping[str, str] | None = None,
    resampled: Resampled | None = None,
) -> Comparison:
    """Compare runs on one subject: means over seeds, and paired differences to the softmax run by the same method.

    Args:
        results: frame in the wide form, with columns ``run, seed, method, set, n`` and metrics, unscaled.
        subject: a test set, such as ``test`` or ``ood/NAME``, or ``shift`` for the mean over corruptions.
        metric: metric of detection, for OOD sets, whose columns are the detectors.
        baselines: run → the run that it is compared with, possibly itself, which compares its methods; None takes the
            run with ``softmax`` in its name that begins most alike.
        resampled: row → metric → values on resampled test examples, for intervals with one seed.

    Raises:
        ValueError: no results on the subject, or results on different numbers of examples.
    """
    frame = mean_shift(results) if subject == "shift" else results[results["set"] == subject]
    sizes = sorted(frame["n"].unique())
    if len(sizes) != 1:
        what = f"on {' and '.join(f'{size:g}' for size in sizes)} examples" if sizes else "nowhere"
        raise ValueError(f"runs were scored on {subject} {what}: compare runs that were scored on the same test data")
    baselines = _softmax(frame["run"].unique()) if baselines is None else baselines
    scores, keys = {}, {}
    for key, group in frame.groupby(["run", "method"], sort=False):
        values = group.dropna(axis=1, how="all").set_index("seed")
        row = row_label(*key)
        keys[row], scores[row] = key, values.drop(columns=[key for key in KEYS if key in values]).to_dict("index")
    pairs = {row: _baseline(*key, baselines, scores) for row, key in keys.items() if not key[1].startswith(ENSEMBLE)}
    single = frame["seed"].nunique() == 1 and bool(resampled)
    return compare(
        scores,
        baselines={row: other for row, other in pairs.items() if other in scores and other != row},
        groups=_groups(scores),
        metrics=_columns(subject, metric, {key for seeds in scores.values() for run in seeds.values() for key in run}),
        resampled=resampled,
        note=f"n = {sizes[0]:,g}." + (f" {SINGLE_SEED}" if single else ""),
    )


def comparisons(
    results: pd.DataFrame,
    *,
    baselines: Mapping[str, str] | None = None,
    resampled: Callable[[str], Resampled] | None = None,
) -> dict[str, Comparison]:
    """Return the comparisons on all subjects by title.

    Args:
        results, baselines: as for :func:`compare_results`.
        resampled: function of the name of a test set to the values on its resampled examples.
    """
    compared = {}
    for title, subject, metric in _subjects(results["set"]):
        if _columns(subject, metric, set(results[results["set"] == subject].dropna(axis=1, how="all"))) != {}:
            values = resampled(subject) if resampled and metric == "" and subject != "shift" else None
            options = {"metric": metric, "baselines": baselines, "resampled": values}
            compared[title] = compare_results(results, subject, **options)
    return compared


def from_statistics(lines: pd.DataFrame) -> dict[str, Comparison]:
    """Return the comparisons on all subjects by title, of statistics over seeds that were stored without the seeds.

    Args:
        lines: columns ``run, method, set, metric, mean, std, n, baseline, baseline_method, difference, low, high``.
    """
    compared, names = {}, lines["set"].replace("^shift/.*", "shift", regex=True)
    for title, subject, metric in _subjects(lines["set"]):
        cells: dict[str, dict[str, Cell]] = {}
        baselines, known = {}, set(lines[names == subject]["metric"])
        columns = _columns(subject, metric, known) or {
            key: value for key, value in displays(known).items() if key in known
        }
        for line in lines[(names == subject) & lines["metric"].isin(columns)].to_dict("records"):
            numbers = {key: None if pd.isna(line[key]) else line[key] for key in ("std", "difference", "low", "high")}
            row = cells.setdefault(row_label(line["run"], line["method"]), dict.fromkeys(columns, Cell((), math.nan)))
            row[line["metric"]] = Cell((line["mean"],) * int(line["n"]), line["mean"], **numbers)
            if not pd.isna(line["baseline"]):
                other = row_label(line["baseline"], line.get("baseline_method", POSTERIOR))
                baselines[row_label(line["run"], line["method"])] = other
        if cells:
            groups = _groups(cells)
            compared[title] = Comparison(columns, groups, baselines, cells, best_rows(cells, groups, columns))
    return compared


def read(paths: Sequence[Path], *, tuned: Collection[str] = ()) -> tuple[pd.DataFrame, dict[str, Comparison]]:
    """Return the results of evaluated runs in the wide form, and their comparisons by title.

    Args:
        paths: folders of runs, folders that hold them at any depth, or ``results.csv`` of a comparison.
        tuned: settings that were chosen for each kind of run by itself.

    Raises:
        SettingsError: no run, runs that cannot be compared, or a table without the columns of results.
    """
    tables = [path for path in paths if path.suffix == ".csv"]
    if not tables:
        runs = read_runs(paths)
        results, twins = to_rows(runs), softmax_twins(runs, tuned=tuned)
        return results, comparisons(results, baselines=twins, resampled=functools.partial(resampled, runs))
    if len(tables) < len(paths):
        raise SettingsError("compare either folders of runs or tables of results, not both")
    results = pd.concat(map(pd.read_csv, tables), ignore_index=True)
    if {"metric", "mean", "std"} <= set(results):
        return results, from_statistics(results)
    if missing := [key for key in KEYS if key not in results]:
        raise SettingsError(f"{tables[0]} lacks the columns {', '.join(missing)}: results have {', '.join(KEYS)}")
    return results, comparisons(results)


def to_latex(comparison: Comparison) -> str:
    r"""Return the LaTeX ``tabular`` of a comparison, which needs ``\usepackage{booktabs}``."""
    return latex(comparison_table(comparison))


def write(folder: Path, results: pd.DataFrame, compared: Mapping[str, Comparison], *, note: str = "") -> None:
    """Write ``results.csv``, all tables as ``comparison.md`` and ``comparison.tex``, and ``differences.svg``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(
        folder / "results.csv", results.to_csv(index=False, lineterminator="\n").encode(errors="backslashreplace")
    )
    pages = [f"# {title}\n\n{markdown(comparison_table(comparison))}" for title, comparison in compared.items()]
    write_bytes(folder / "comparison.md", "\n".join([*pages, note]).encode())
    tables = [f"% {title}\n{to_latex(comparison)}" for title, comparison in compared.items()]
    write_bytes(folder / "comparison.tex", "\n".join(tables).encode())
    figure = differences(next(iter(compared.values())))
    (folder / "differences.svg").unlink(missing_ok=True)
    if figure is not None:
        save_figure(folder / "differences.svg", figure)


def _subjects(sets: pd.Series) -> Iterator[tuple[str, str, str]]:
    """Yield title, subject and metric of detection of each comparison on some test sets."""
    names = list(sets.unique())
    for name in names:
        if name == "test" or name.startswith("domain/"):
            yield f"Test data{name.removeprefix('test').replace('domain/', ', ')}", name, ""
    if any(name.startswith("shift/") for name in names):
        yield "Corrupted test images, mean", "shift", ""
    for name in (name for name in names if name.startswith("ood/")):
        for metric, display in OOD_DISPLAY.items():
            yield f"Detection of {name.removeprefix('ood/')}, {display.title}", name, metric


def _columns(subject: str, metric: str, known: Collection[str]) -> dict[str, MetricDisplay] | None:
    """Return the detectors of an OOD set that are among known metrics; None for other subjects."""
    if not subject.startswith("ood/"):
        return None
    columns = {f"{key}_{metric}": OOD_DISPLAY[metric]._replace(title=title) for key, title in DETECTORS.items()}
    return {key: display for key, display in columns.items() if key in known}


def _groups(rows: Iterable[str]) -> dict[str, tuple[str, ...]] | None:
    """Return single models and ensembles as groups; one group without ensembles."""
    ensembles = tuple(row for row in rows if f", {ENSEMBLE}" in row)
    single = tuple(row for row in rows if row not in ensembles)
    return {"single models": single, "ensembles": ensembles} if ensembles else {"": single}


def _softmax(runs: Iterable[str]) -> dict[str, str]:
    """Return the softmax run of each run: itself, or the one whose name begins most alike."""
    softmax = [run for run in runs if "softmax" in run.partition(" (")[0]]
    closest = {
        run: max(softmax, key=lambda other: len(os.path.commonprefix([run, other])), default=run) for run in runs
    }
    return {run: run if run in softmax else other for run, other in closest.items() if softmax}


def _baseline(run: str, method: str, baselines: Mapping[str, str], scores: Mapping[str, Mapping]) -> str:
    """Return the row that one is compared with: its twin by the same method, or by the last part of it, or alone.

    ``refit+temperature``, whose first part a softmax twin lacks, is compared with the twin's ``temperature``. Methods
    of a run that is its own twin are compared with it alone.
    """
    twin = baselines.get(run, "")
    if twin in ("", run):
        return twin
    parts, seeds = method.split("+"), scores[row_label(run, method)].keys() & scores.get(twin, {}).keys()
    candidates = [row_label(twin, "+".join(parts[start:])) for start in range(len(parts))]
    return next((row for row in candidates if seeds and seeds <= scores.get(row, {}).keys()), twin)
