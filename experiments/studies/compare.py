"""Comparisons of runs over seeds, from results in the wide form: tables in Markdown and LaTeX, and
a figure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from probattn.experiments.config.schema import Trust
from probattn.experiments.displayable import csv_text
from probattn.experiments.evaluation.evaluated_run import KEYS, mean_shifts
from probattn.experiments.evaluation.kept_predictions import parquet
from probattn.experiments.evaluation.methods import BASELINE, ENSEMBLE, row_label
from probattn.experiments.evaluation.seed_statistics import Comparison, Resampled, compare
from probattn.experiments.plots.differences import differences
from probattn.experiments.plots.style import to_svg
from probattn.experiments.reporting.tables import (
    Table,
    comparison_table,
    latex,
    markdown,
    plain_table,
)
from probattn.experiments.studies import collect
from probattn.experiments.studies.twins import twins
from probattn.inference.io.outputs import check_outputs, write_outputs
from probattn.inference.metrics import Metric
from probattn.inference.metrics.ood import DETECTORS, OF_DETECTION, WITH_UNKNOWNS

OVER_EXAMPLES = "Intervals are over test examples, by 300 paired resamples."
OVER_BOTH = "Intervals are over seeds and test examples, by 300 paired resamples of both."
OVER_SEEDS = "Intervals are over seeds alone, on these test examples."
SUBJECTS = (
    ("valid", "Validation data", ""),
    ("test", "Test data", ""),
    ("domain/(.+)", "Test data, {}", ""),
    ("shift", "Corrupted test images, mean", ""),
    ("shift/photometric", "Photometric corruptions, mean", ""),
    ("shift/other", "Other corruptions, mean", ""),
    ("ood/(.+)", "Detection of {}, AUROC", "auroc"),
    ("ood/(.+)", "Errors and {} among the accepted, AURC", "aurc"),
)
"""Patterns of subjects, titles of their comparisons, and metrics of detection; other sets have no
comparison."""


FILES = ("comparison.md", "comparison.tex", "results.csv", "results.parquet", "differences.svg")
MARK = "probattn compare"
"""Text in the first of these files, by which an earlier comparison is known."""


def compare_results(
    results: pd.DataFrame,
    subject: str = "test",
    *,
    metric: str = "auroc",
    resampled: Resampled | None = None,
) -> Comparison:
    """Compare runs on one subject: means over seeds, and paired differences to the softmax run by
    the same method.

    Args:
        results: frame in the wide form, with columns ``run, seed, method, set, n`` and metrics,
            unscaled.
        subject: a test set, such as ``test`` or ``ood/NAME``, or the mean over corruptions,
            ``shift``, ``shift/photometric`` or ``shift/other``.
        metric: metric of detection, for OOD sets, whose columns are the detectors.
        resampled: row → metric → values on resampled test examples, for intervals with one seed.

    Raises:
        ValueError: no results on the subject, or results on different numbers of examples.
    """
    if subject in ("shift", "shift/photometric", "shift/other"):
        results = mean_shifts(results)
    frame = results[results["set"] == subject]
    number = _common_size(frame, subject)
    frame = frame.assign(row=list(map(row_label, frame["run"], frame["method"])))
    # All runs of a seed have the same baselines.
    is_baseline = frame["method"].str.startswith(BASELINE)
    frame = frame[~(is_baseline & frame.duplicated(["row", "seed"]))]
    seeds = frame.groupby("row", sort=False)["seed"].agg(set)
    softmax = twins(frame["run"].unique())
    ensembles, opponents = [], {}
    for row, run, method in (
        frame[["row", "run", "method"]].drop_duplicates().itertuples(index=False)
    ):
        if method.startswith(ENSEMBLE):
            ensembles.append(row)
        elif not method.startswith(BASELINE):
            # The twin by the same method with all seeds of the row, or else the twin alone; methods
            # of a run that is its own twin are compared with it alone.
            twin = softmax[run]
            by_method = row_label(twin, method)
            has_all_seeds = seeds[row] <= seeds.get(by_method, set())
            opponents[row] = by_method if twin not in ("", run) and has_all_seeds else twin
    known = {row: other for row, other in opponents.items() if other in seeds and other != row}
    groups = None
    if ensembles:
        groups = {
            "single models": [row for row in seeds.index if row not in ensembles],
            "ensembles": ensembles,
        }
    metrics_alone = frame.drop(columns=["run", "method", "set", "n"])
    scores = metrics_alone.set_index(["row", "seed"]).dropna(axis=1, how="all")
    comparison = compare(
        scores,
        baselines=known,
        groups=groups,
        metrics=_detection(metric, scores.columns) if subject.startswith("ood/") else None,
        resampled=resampled,
    )
    note = f"n = {number:,g}."
    if comparison.has_intervals:
        over = OVER_EXAMPLES if frame["seed"].nunique() == 1 else OVER_BOTH
        note += f" {over if resampled else OVER_SEEDS}"
    return replace(comparison, note=note)


def comparisons(
    results: pd.DataFrame, *, resampled: Mapping[str, Resampled] | None = None
) -> dict[str, Comparison]:
    """Return the comparisons on all subjects by title.

    Args:
        results: as for :func:`compare_results`.
        resampled: test set → values on its resampled examples.
    """
    subjects = [*results["set"].unique(), *mean_shifts(results)["set"].unique()]
    compared = {}
    for pattern, title, detection in SUBJECTS:
        if detection and not any(column.endswith(f"_{detection}") for column in results):
            continue
        for subject in subjects:
            if match := re.fullmatch(pattern, subject):
                compared[title.format(*match.groups())] = compare_results(
                    results,
                    subject,
                    metric=detection,
                    resampled=(resampled or {}).get(subject),
                )
    return compared


def _common_size(frame: pd.DataFrame, subject: str) -> float:
    """Return the number of examples of all results on a subject.

    Raises:
        ValueError: no results, or results on different numbers of examples.
    """
    sizes = sorted(frame["n"].unique())
    if len(sizes) == 1:
        return sizes[0]
    where = f"on {' and '.join(f'{size:g}' for size in sizes)} examples" if sizes else "nowhere"
    raise ValueError(
        f"runs were scored on {subject} {where}: compare runs that were scored on the same "
        "test data"
    )


def _detection(metric: str, known: pd.Index) -> dict[str, Metric]:
    """Return a metric of detection by each detector that there are results of, under its title."""
    about = (OF_DETECTION | WITH_UNKNOWNS)[metric]
    columns = {}
    for detector, title in DETECTORS.items():
        key = f"{detector}_{metric}"
        if key in known:
            columns[key] = about._replace(title=title)
    return columns


class Results(NamedTuple):
    """Results of evaluated runs.

    Args:
        scores: in the wide form.
        comparisons: by title.
        examples: kept predictions on test data, see
            :func:`~probattn.experiments.studies.collect.examples`; empty if none are kept.
        resampled: test set → values on its resampled examples.
        seconds: run → mean time of its training; without those read from files.
    """

    scores: pd.DataFrame
    comparisons: dict[str, Comparison]
    examples: pd.DataFrame
    resampled: Mapping[str, Resampled] = {}
    seconds: Mapping[str, float] = {}


def read(paths: Sequence[Path], *, trust_code: Trust = False) -> Results:
    """Return the results of evaluated runs.

    Args:
        paths: folders of runs, folders that hold them at any depth, or only CSV files, with kept
            predictions in a file of the same name that ends in ``.parquet``; those without results
            of single seeds, and those of several studies, have no comparison.
        trust_code: as for :func:`~probattn.experiments.runs.load.open_run`.

    Raises:
        SettingsError: no run, or runs that cannot be compared.
        IsADirectoryError: folders beside CSV files.
    """
    seconds = {}
    if not any(path.suffix == ".csv" for path in paths):
        runs = collect.read_runs(paths, trust_code=trust_code)
        scores, examples = collect.rows(runs), collect.examples(runs)
        seconds = {label: collect.seconds(members) for label, members in runs.items()}
    else:
        scores = pd.concat(map(pd.read_csv, paths), ignore_index=True)
        kept = [path.with_suffix(".parquet") for path in paths]
        frames = [pd.read_parquet(path) for path in kept if path.exists()]
        examples = pd.concat([pd.DataFrame(), *frames], ignore_index=True)
    has_seeds = set(KEYS) <= set(scores)
    if not has_seeds or "study" in scores:
        return Results(scores, {}, examples)
    resampled = collect.resampled(examples)
    compared = comparisons(scores, resampled=resampled)
    return Results(scores, compared, examples, resampled, seconds)


def tables(results: pd.DataFrame, compared: Mapping[str, Comparison]) -> dict[str, Table]:
    """Return the tables of comparisons by title; without a comparison, that of the results as they
    are."""
    if not compared:
        return {"Results": plain_table(results)}
    return {title: comparison_table(comparison) for title, comparison in compared.items()}


def check(folder: Path) -> None:
    """Check that :func:`write` may write to a folder; raise OutputError if not."""
    check_outputs([folder / name for name in FILES], mark=MARK)


def write(
    folder: Path,
    results: Results,
    *,
    inputs: Sequence[Path] = (),
) -> None:
    """Write all tables as ``comparison.md`` and ``comparison.tex``, ``results.csv`` with the kept
    predictions in ``results.parquet``, and ``differences.svg``.

    Raises:
        OutputError: other files of these names are there, or the folder is that of a run or an
            input.
    """
    page = f"<!-- {MARK} -->\n\n"
    tabulars = ""
    for title, table in tables(results.scores, results.comparisons).items():
        page += f"# {title}\n\n{markdown(table)}\n"
        tabulars += f"% {title}\n\n{latex(table)}\n"
    figure = next(map(differences, results.comparisons.values()), None)
    drawing = to_svg(figure) if figure else b""
    kept = b"" if results.examples.empty else parquet(results.examples)
    contents = (page.encode(), tabulars.encode(), csv_text(results.scores).encode(), kept, drawing)
    files = {folder / name: content for name, content in zip(FILES, contents, strict=True)}
    write_outputs(files, mark=MARK, inputs=inputs)
    for path, content in files.items():
        if not content:  # nor is one of an earlier comparison left
            path.unlink()
