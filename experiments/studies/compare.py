"""Comparisons of runs over seeds, from results in the wide form: tables in Markdown and LaTeX, and
a figure."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from probattn.experiments.config.schema import Trust
from probattn.experiments.data.images.corruptions import PHOTOMETRIC
from probattn.experiments.displayable import csv_text
from probattn.experiments.evaluation.evaluated_run import KEYS, mean_shift
from probattn.experiments.evaluation.methods import ENSEMBLE, row_label
from probattn.experiments.evaluation.metric_display import DETECTORS, OOD_DISPLAY
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
from probattn.inference.io.outputs import check_outputs, write_outputs

SINGLE_SEED = (
    "With one seed, intervals are percentiles over 300 paired resamples of the test examples."
)
OF_LAYER = (
    "layer.",
    "warm_start",
    "train.elbo",
    "train.samples_per",
    "train.vectorize",
    "train.num_",
    "train.kl_",
    "train.local_kl_weight",
    "train.alpha_",
    "train.guide_",
)
"""Settings of a layer, and of its latent variables and regulariser, which softmax attention
lacks."""
SUBJECTS = (
    ("valid", "Validation data", "auroc"),
    ("test", "Test data", "auroc"),
    ("domain/(.+)", "Test data, {}", "auroc"),
    ("shift", "Corrupted test images, mean", "auroc"),
    ("shift/photometric", "Photometric corruptions, mean", "auroc"),
    ("shift/other", "Other corruptions, mean", "auroc"),
    ("ood/(.+)", "Detection of {}, AUROC", "auroc"),
    ("ood/(.+)", "Errors and {} among the accepted, AURC", "aurc"),
)
"""Patterns of subjects, titles of their comparisons, and metrics of detection; other sets have no
comparison."""


FILES = ("comparison.md", "comparison.tex", "results.csv", "differences.svg")
MARK = "probattn compare"
"""Text in the first of these files, by which an earlier comparison is known."""


def compare_results(
    results: pd.DataFrame,
    subject: str = "test",
    *,
    metric: str = "auroc",
    baselines: Mapping[str, str] | None = None,
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
        baselines: run → the run that it is compared with, possibly itself, which compares its
            methods; None takes :func:`twins`.
        resampled: row → metric → values on resampled test examples, for intervals with one seed.

    Raises:
        ValueError: no results on the subject, or results on different numbers of examples.
    """
    is_mean = subject in ("shift", "shift/photometric", "shift/other")
    frame = mean_shift(results, subject[6:]) if is_mean else results[results["set"] == subject]
    sizes = sorted(frame["n"].unique())
    if len(sizes) != 1:
        where = f"on {' and '.join(f'{size:g}' for size in sizes)} examples" if sizes else "nowhere"
        raise ValueError(
            f"runs were scored on {subject} {where}: compare runs that were scored on the same "
            "test data"
        )
    baselines = twins(frame["run"].unique()) if baselines is None else baselines
    scores, pairs = {}, {}
    for (run, method), group in frame.drop(columns=["set", "n"]).groupby(
        ["run", "method"], sort=False
    ):
        values = group.drop(columns=["run", "method"]).dropna(axis=1, how="all").set_index("seed")
        scores[row_label(run, method)] = values.to_dict("index")
        if not method.startswith(ENSEMBLE):
            pairs[row_label(run, method)] = run, method, baselines.get(run, "")
    ensembles = tuple(row for row in scores if row not in pairs)
    opponents = {row: _baseline(*pair, scores) for row, pair in pairs.items()}
    detectors = {
        f"{key}_{metric}": OOD_DISPLAY[metric]._replace(title=title)
        for key, title in DETECTORS.items()
    }
    known = frame.dropna(axis=1, how="all").columns
    return compare(
        scores,
        baselines={
            row: opponent
            for row, opponent in opponents.items()
            if opponent in scores and opponent != row
        },
        groups={"single models": tuple(pairs), "ensembles": ensembles} if ensembles else None,
        metrics={key: detectors[key] for key in detectors if key in known}
        if subject.startswith("ood/")
        else None,
        resampled=resampled,
        note=f"n = {sizes[0]:,g}."
        + (f" {SINGLE_SEED}" if resampled and frame["seed"].nunique() == 1 else ""),
    )


def comparisons(
    results: pd.DataFrame, *, resampled: Mapping[str, Resampled] | None = None
) -> dict[str, Comparison]:
    """Return the comparisons on all subjects by title.

    Args:
        results: as for :func:`compare_results`.
        resampled: test set → values on its resampled examples.
    """
    compared, values, subjects = {}, resampled or {}, list(results["set"].unique())
    corruptions = results["set"].str.extract("^shift/(.+)/", expand=False).dropna()
    subjects += ["shift"] if len(corruptions) else []
    subjects += {
        "shift/photometric" if name in PHOTOMETRIC else "shift/other" for name in corruptions
    }
    for pattern, title, metric in SUBJECTS:
        for match in filter(None, (re.fullmatch(pattern, subject) for subject in subjects)):
            if not title.endswith(metric.upper()) or any(
                column.endswith(f"_{metric}") for column in results
            ):
                comparison = compare_results(
                    results, match[0], metric=metric, resampled=values.get(match[0])
                )
                compared[title.format(*match.groups())] = comparison
    return compared


def twins(runs: Iterable[str]) -> dict[str, str]:
    """Return the softmax run with which each run is compared; runs without one are left out.

    Runs are named ``PRESET LAYER (CHANGES)``. A twin has a preset of the same family, and the same
    changes but those of :data:`OF_LAYER`. Of several the name begins most alike, or is shortest. A
    softmax run is its own twin.
    """
    settings = {}
    for run in runs:
        name, _, changes = run.partition(" (")
        common = {
            change for change in changes.rstrip(")").split(", ") if not change.startswith(OF_LAYER)
        }
        settings[run] = name.rpartition("/")[0], common - {""}
    softmax = [run for run in settings if run.partition(" (")[0].endswith("softmax")]
    pairs = {}
    for run in settings:
        alike = (
            [run]
            if run in softmax
            else [twin for twin in softmax if settings[twin] == settings[run]]
        )
        pairs[run] = max(
            alike,
            key=lambda other: (len(os.path.commonprefix([run, other])), -len(other)),
            default="",
        )
    return pairs


def read(
    paths: Sequence[Path], *, trust_code: Trust = False
) -> tuple[pd.DataFrame, dict[str, Comparison]]:
    """Return the results of evaluated runs in the wide form, and their comparisons by title.

    Args:
        paths: folders of runs, folders that hold them at any depth, or only CSV files; those
            without results of single seeds, and those of several studies, have no comparison.
        trust_code: as for :func:`~probattn.experiments.runs.load.open_run`.

    Raises:
        SettingsError: no run, or runs that cannot be compared.
        IsADirectoryError: folders beside CSV files.
    """
    if not any(path.suffix == ".csv" for path in paths):
        runs = collect.read_runs(paths, trust_code=trust_code)
        results = collect.rows(runs)
        return results, comparisons(results, resampled=collect.resampled(runs))
    results = pd.concat(map(pd.read_csv, paths), ignore_index=True)
    return results, comparisons(results) if set(KEYS) <= set(
        results
    ) and "study" not in results else {}


def tables(results: pd.DataFrame, compared: Mapping[str, Comparison]) -> dict[str, Table]:
    """Return the tables of comparisons by title; without a comparison, that of the results as they
    are."""
    shown = {title: comparison_table(comparison) for title, comparison in compared.items()}
    return shown or {
        "Results": plain_table(results.columns, results.itertuples(index=False, name=None))
    }


def check(folder: Path) -> None:
    """Check that :func:`write` may write to a folder; raise OutputError if not."""
    check_outputs([folder / name for name in FILES], mark=MARK)


def write(
    folder: Path,
    results: pd.DataFrame,
    compared: Mapping[str, Comparison],
    *,
    inputs: Sequence[Path] = (),
) -> None:
    """Write all tables as ``comparison.md`` and ``comparison.tex``, ``results.csv``, and
    ``differences.svg``.

    Raises:
        OutputError: other files of these names are there, or the folder is that of a run or an
            input.
    """
    pages = {"#": f"<!-- {MARK} -->\n\n", "%": ""}
    for title, table in tables(results, compared).items():
        pages["#"] += f"# {title}\n\n{markdown(table)}\n"
        pages["%"] += f"% {title}\n\n{latex(table)}\n"
    figure = next(map(differences, compared.values()), None)
    contents = [*pages.values(), csv_text(results), to_svg(figure).decode() if figure else ""]
    files = {folder / name: content for name, content in zip(FILES, contents, strict=True)}
    write_outputs(files, mark=MARK, inputs=inputs)
    if figure is None:  # of an earlier comparison
        (folder / FILES[-1]).unlink()


def _baseline(run: str, method: str, twin: str, scores: Mapping[str, Mapping]) -> str:
    """Return the row that one is compared with: its twin by the same method with all its seeds, or
    else its twin alone.

    Methods of a run that is its own twin are compared with it alone.
    """
    row, seeds = row_label(twin, method), scores[row_label(run, method)].keys()
    return row if twin not in ("", run) and seeds <= scores.get(row, {}).keys() else twin
