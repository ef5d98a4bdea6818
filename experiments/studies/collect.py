"""Evaluated runs as rows of a comparison: a row for all seeds of one kind of run, and its
ensemble."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from probattn.experiments.config.presets import preset, with_layer
from probattn.experiments.config.schema import Trust
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.evaluation import evaluated_run
from probattn.experiments.evaluation.evaluated_run import EvaluatedRun
from probattn.experiments.evaluation.example_intervals import (
    draw_counts,
    over_seeds,
    resampled_metrics,
)
from probattn.experiments.evaluation.methods import ENSEMBLE, POSTERIOR, row_label
from probattn.experiments.evaluation.seed_statistics import Replicates, Resampled
from probattn.inference.methods.ensemble import mix
from probattn.inference.training.run_log import read_log

IGNORED = (
    "data.path",
    "data.seed",
    "train.seed",
    "train.accelerator",
    "train.devices",
    "train.compile",
    "train.deterministic",
    "train.log_every",
    "train.checkpoint_every",
)
"""Settings of the seeds, or of where and how fast a run is computed; data are compared by their
content."""
Runs = dict[str, list[EvaluatedRun]]
"""Label of a kind of run → its runs, one for each seed."""


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of runs: those given, and those at any depth below given folders.

    Raises:
        SettingsError: a path without a run.
    """
    runs: list[Path] = []
    for path in paths:
        inside = [file.parent for file in path.rglob("settings.json")]
        if (path / "settings.json").exists():
            inside = [path]
        if not inside:
            raise SettingsError(
                f"{path} holds no run: name a run's folder, a folder of runs, or a results.csv"
            )
        runs += sorted(inside)
    return list(dict.fromkeys(runs))


def read_runs(paths: Sequence[Path], *, trust_code: Trust = False) -> Runs:
    """Read evaluated runs, grouped by what they are: preset, layer, and the changes that not all of
    them have.

    Args:
        paths: folders of runs, or folders that hold them at any depth.
        trust_code: as for :func:`~probattn.experiments.runs.load.open_run`.

    Raises:
        SettingsError: no run, one that was not evaluated or has changed since, two of the same
            settings and seed, or runs with other test data or posterior samples.
    """
    folders = find_runs(paths)
    runs = [evaluated_run.read_evaluated_run(folder, trust_code=trust_code) for folder in folders]
    evaluated_run.check_comparable(runs)
    changes = [_changes(run) for run in runs]
    common = set(changes[0]).intersection(*changes)
    layers: dict[str, set[str]] = {}
    for run in runs:
        layers.setdefault(run.name, set()).add(run.settings.layer.name)
    labelled: Runs = {}
    for run, changed in zip(runs, changes, strict=True):
        layer = run.settings.layer.name
        label = run.name
        if layers[run.name] != {preset(run.name).layer.name}:
            label += f" {layer}"
        if differing := [change for change in changed if change not in common]:
            label += f" ({', '.join(differing)})"
        members = labelled.setdefault(label, [])
        if run.seed in [member.seed for member in members]:
            raise SettingsError(
                f"two runs of {label} have the same seed, {run.seed}: leave one out"
            )
        members.append(run)
    return labelled


def rows(runs: Runs) -> pd.DataFrame:
    """Return the scores of runs in the wide form, those of ensembles of several seeds included."""
    frames = []
    for label, members in runs.items():
        frames += [run.scores.assign(run=label) for run in members]
        if ensemble := _ensemble(members):
            scores = {f"{ENSEMBLE} of {len(members)}": ensemble}
            frames.append(evaluated_run.to_frame(scores, run=label, seed=0))
    return pd.concat(frames, ignore_index=True)


def seconds(runs: Sequence[EvaluatedRun]) -> float:
    """Return the mean time of the training of runs, with validation; 0 without logs."""
    logs = [run.folder / "log.jsonl" for run in runs]
    records = [record for log in logs if log.exists() for record in read_log(log)]
    return sum(record.get("seconds", 0.0) for record in records) / len(runs)


def examples(runs: Runs) -> pd.DataFrame:
    """Return the kept predictions of runs on test data and other domains, with columns ``run, seed,
    method, set``; of a method that a seed lacks none."""
    frames = []
    for label, members in runs.items():
        for name in members[0].content["data"]:
            if not name.startswith(("test", "domain/")):
                continue
            for method in members[0].scores["method"].unique():
                about = {"run": label, "method": method, "set": name}
                for run in members:
                    if (frame := run.examples(name, method)) is not None:
                        frames.append(frame.assign(**about, seed=run.seed))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def resampled(examples: pd.DataFrame) -> Mapping[str, Resampled]:
    """Return metrics on resampled seeds and examples, by test set and row.

    All runs draw the same examples. One that is among the test data of several seeds is drawn with
    all of them, since it is as hard for each.

    Args:
        examples: as :func:`examples` returns them.

    Raises:
        SettingsError: rows of one seed predict different examples, so nothing can be paired.
    """
    replicates: dict[str, dict[str, Replicates]] = {}
    if examples.empty:
        return replicates
    for name, of_set in examples.groupby("set", sort=False):
        _check_paired(of_set, name=str(name))
        # sorted: the order of the rows changes no draw
        pool = pd.Index(sorted(of_set["example"].unique()))
        counts = draw_counts(len(pool))
        of_rows = replicates[str(name)] = {}
        for (run, method), of_row in of_set.groupby(["run", "method"], sort=False):
            by_seed = {}
            for seed, of_seed in of_row.groupby("seed"):
                drawn = counts[:, pool.get_indexer(of_seed["example"])]
                by_seed[seed] = pd.DataFrame(resampled_metrics(of_seed.dropna(axis=1), drawn))
            metrics = next(iter(by_seed.values())).columns
            values = {
                metric: over_seeds(np.stack([frame[metric] for frame in by_seed.values()]))
                for metric in metrics
            }
            of_rows[row_label(run, method)] = Replicates(tuple(by_seed), values)
    return replicates


def _check_paired(examples: pd.DataFrame, *, name: str) -> None:
    """Raise SettingsError if rows of one seed predict different examples of the test set
    ``name``."""
    keys = ["seed", "run", "method"]
    of_rows = examples.groupby(keys, observed=True)["example"].agg(frozenset)
    for seed, sets in of_rows.groupby("seed"):
        if sets.nunique() > 1:
            raise SettingsError(
                f"the rows of seed {seed} predict different examples of {name}: their "
                "differences cannot be paired. Evaluate them on the same data"
            )


def _changes(run: EvaluatedRun) -> list[str]:
    """Return the changes of a run from its preset with its layer; a total of epochs is one
    change."""
    base = with_layer(preset(run.name), run.settings.layer.name)
    total = run.settings.epochs
    changes = run.settings.changes_from(base.with_total_epochs(total))
    changes = [change for change in changes if not change.startswith(IGNORED)]
    if total != base.epochs:
        changes.append(f"epochs={total}")
    return changes


def _ensemble(runs: Sequence[EvaluatedRun]) -> Mapping | None:
    """Return the scores of the mixture of runs on their common test sets; None for one run, for
    runs with other test data, or for numbers."""
    if len({run.content["data"]["test"] for run in runs}) > 1 or len(runs) < 2:
        return None
    first, *others = (run.predictions(run.content["data"], POSTERIOR) for run in runs)
    names = [name for name in first if all(name in other for other in others)]
    if not {"valid", "test"} <= set(names) or first["test"].probs is None:
        return None
    mixtures = {name: mix([member[name] for member in (first, *others)]) for name in names}
    return evaluated_run.score(mixtures)
