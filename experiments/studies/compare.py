"""Comparisons of runs over seeds, from results in the wide form: tables in Markdown and LaTeX, and a figure."""

import functools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from probattn.experiments.config.validation import SettingsError
from probattn.experiments.evaluation.methods import ENSEMBLE, POSTERIOR, row_label
from probattn.experiments.evaluation.metric_display import DETECTORS, OOD_DISPLAY
from probattn.experiments.evaluation.scores import KEYS, mean_shift
from probattn.experiments.evaluation.seed_statistics import Comparison, Resampled, compare
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
    rows, scores = {}, {}
    for (run, method), group in frame.groupby(["run", "method"], sort=False):
        row = row_label(run, method)
        if method == ENSEMBLE:
            row = f"{run}, ensemble of {((frame['run'] == run) & (frame['method'] == POSTERIOR)).sum()}"
        rows[row], values = (run, method), group.dropna(axis=1, how="all").set_index("seed")
        scores[row] = values.drop(columns=[key for key in KEYS if key in values]).to_dict("index")
    ensembles = [row for row, (_, method) in rows.items() if method == ENSEMBLE]
    groups = {"single models": [row for row in rows if row not in ensembles], "ensembles": ensembles}
    pairs = {row: _baseline(*key, baselines, scores) for row, key in rows.items() if key[1] != ENSEMBLE}
    columns = None
    if subject.startswith("ood/"):
        known = {key for seeds in scores.values() for values in seeds.values() for key in values}
        columns = {f"{key}_{metric}": OOD_DISPLAY[metric]._replace(title=title) for key, title in DETECTORS.items()}
        columns = {key: display for key, display in columns.items() if key in known}
    single = frame["seed"].nunique() == 1 and bool(resampled)
    return compare(
        scores,
        baselines={row: other for row, other in pairs.items() if other in scores and other != row},
        groups=groups if ensembles else None,
        metrics=columns,
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
    names, compared = list(results["set"].unique()), {}
    for name in names:
        if name == "test" or name.startswith("domain/"):
            title = f"Test data{name.removeprefix('test').replace('domain/', ', ')}"
            values = resampled(name) if resampled else None
            compared[title] = compare_results(results, name, baselines=baselines, resampled=values)
    if any(name.startswith("shift/") for name in names):
        compared["Corrupted test images, mean"] = compare_results(results, "shift", baselines=baselines)
    for name in (name for name in names if name.startswith("ood/")):
        for metric, display in OOD_DISPLAY.items():
            if any(
                column.endswith(f"_{metric}") for column in results[results["set"] == name].dropna(axis=1, how="all")
            ):
                title = f"Detection of {name.removeprefix('ood/')}, {display.title}"
                compared[title] = compare_results(results, name, metric=metric, baselines=baselines)
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
    if missing := [key for key in KEYS if key not in results]:
        raise SettingsError(f"{tables[0]} lacks the columns {', '.join(missing)}: results have {', '.join(KEYS)}")
    return results, comparisons(results)


def to_latex(comparison: Comparison) -> str:
    r"""Return the LaTeX ``tabular`` of a comparison, which needs ``\usepackage{booktabs}``."""
    return latex(comparison_table(comparison))


def write(folder: Path, results: pd.DataFrame, compared: Mapping[str, Comparison], *, note: str = "") -> None:
    """Write ``results.csv``, all tables as ``comparison.md`` and ``comparison.tex``, and ``differences.svg``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "results.csv", results.to_csv(index=False, lineterminator="\n").encode())
    pages = [f"# {title}\n\n{markdown(comparison_table(comparison))}" for title, comparison in compared.items()]
    write_bytes(folder / "comparison.md", "\n".join([*pages, note]).encode())
    tables = [f"% {title}\n{to_latex(comparison)}" for title, comparison in compared.items()]
    write_bytes(folder / "comparison.tex", "\n".join(tables).encode())
    figure = differences(next(iter(compared.values())))
    (folder / "differences.svg").unlink(missing_ok=True)
    if figure is not None:
        save_figure(folder / "differences.svg", figure)


def _softmax(runs: Iterable[str]) -> dict[str, str]:
    """Return the softmax run of each run: itself, or the one whose name begins most alike."""
    softmax = [run for run in runs if "softmax" in run]
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
