"""Rows of a comparison, collected from the folders of evaluated runs: a row per settings and method, a run per seed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from probattn.experiments.config.layers import layer_class
from probattn.experiments.config.presets import PRESETS
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.evaluation import methods, prediction_store
from probattn.experiments.evaluation.evaluated_run import (
    EvaluatedRun,
    check_comparable,
    check_mixable,
    read_evaluated_run,
)
from probattn.experiments.evaluation.provenance import digests
from probattn.experiments.evaluation.scores import Scores, score
from probattn.experiments.runs.folder import train_command
from probattn.inference.methods.ensemble import mix

SINGLE, ENSEMBLES = "single models", "ensembles"
OF_LAYER = ("elbo", "samples_per", "num_particles", "vectorize", "num_samples", "kl_weight", "local_kl_weight",
            "kl_anneal_epochs", "alpha_start", "alpha_end", "guide_lr", "guide_optimizer")  # fmt: skip
"""Training options of a layer's latent variables and regulariser, which softmax attention lacks."""
OF_MACHINE = ("seed", "accelerator", "devices", "compile", "deterministic", "log_every", "checkpoint_every")
"""Training options that change nothing but the seed, or how fast and where a run is computed."""


@dataclass(frozen=True)
class Rows:
    """Rows of a comparison.

    Args:
        scores: row → seed → scores.
        baselines: row → the row of its softmax twin, if that is among them: by the same method if the twin was
            evaluated by it with the same seeds, or else by its last part (a temperature) or alone. Methods on top of
            the twin are compared with it alone.
        groups: heading → rows.
        plain: the rows of the posterior predictive.
        sources: digests of what the scores of each run and method were computed from.
        note: sentences below each table, such as on how the runs were chosen.
        shift_source: where the corrupted images are from.
        sizes: number of examples of each test set with labels.
    """

    scores: dict[str, dict[int, Scores]]
    baselines: dict[str, str]
    groups: dict[str, list[str]]
    plain: list[str]
    sources: dict[str, str] = field(default_factory=dict)
    note: str = ""
    shift_source: str = ""
    sizes: dict[str, int] = field(default_factory=dict)


def rows(folders: Sequence[Path], *, tuned: Collection[str] = (), note: str = "") -> Rows:
    """Collect runs into rows, one for all seeds of a kind and each method that it was evaluated by.

    Several runs of a kind that keep their predictions also have a row for their ensemble.

    Args:
        folders: folders of the runs.
        tuned: settings that were chosen for each preset by itself; softmax twins may differ in them.
        note: sentences below each table.

    Raises:
        SettingsError: a folder without a run, a run that was not evaluated or has changed since, two of the same
            settings and seed, or runs that differ in their data, samples or libraries.
        CheckpointError: damaged predictions.
    """
    if not folders:
        raise SettingsError("nothing to compare: give the folders of evaluated runs")
    runs = [read_evaluated_run(folder) for folder in folders]
    data = dict.fromkeys(run.settings.data.name for run in runs)
    if len(data) > 1:
        raise SettingsError(f"these runs are on different data, {', '.join(data)}: compare the runs of each separately")
    kinds: dict[tuple[str, ...], list[EvaluatedRun]] = {}
    for run in runs:
        kinds.setdefault(_kind(run), []).append(run)
    check_comparable(runs)
    settings = {kind: members[0].settings for kind, members in kinds.items()}
    labels = {kind: _label(kind, settings) + _unfinished(members) for kind, members in kinds.items()}
    single: dict[str, dict[int, Scores]] = {}
    ensembles: dict[str, dict[int, Scores]] = {}
    twins: dict[str, tuple[str, str]] = {}
    for kind, members in kinds.items():
        label, twin = labels[kind], labels.get(_twin(kind, settings, tuned))
        for run in members:
            seed = run.settings.train.seed or 0
            for method, scores in run.scores.items():
                row = methods.row_label(label, method)
                if seed in single.setdefault(row, {}):
                    raise SettingsError(
                        f"{run.folder}: another run of {label} has seed {seed} already; compare one of them"
                    )
                single[row][seed] = scores
                if twin is not None and row != twin:
                    twins[row] = twin, method
        mixed = ensemble(members)
        if mixed is not None:
            ensembles[f"{label}, ensemble of {len(members)}"] = {0: mixed}
    baselines = {row: _baseline(row, *each, seeds=single) for row, each in twins.items()}
    groups = {heading: list(part) for heading, part in ((SINGLE, single), (ENSEMBLES, ensembles)) if part}
    sources = {f"{run.folder}: {method}": each for run in runs for method, each in digests(run.provenance).items()}
    shift_source = next((run.shift_source for run in runs if run.shift_source), "")  # the same, as their digests are
    sizes = {name: size for run in runs for name, size in run.sizes.items()}  # the same, too
    return Rows(single | ensembles, baselines, groups, list(labels.values()), sources, note, shift_source, sizes)


def _baseline(row: str, twin: str, method: str, *, seeds: Mapping[str, Collection[int]]) -> str:
    """Return the row that one is compared with: its twin by the same method, or by the last part of it, or alone.

    ``refit+temperature``, whose first part a softmax twin lacks, is compared with the twin's ``temperature``.
    """
    shared = set(seeds[row]) & set(seeds[twin])
    parts = method.split("+")
    rows = [methods.row_label(twin, "+".join(parts[start:])) for start in range(len(parts))]
    if not shared or row in rows:  # nothing to pair, or a method on top of the twin itself
        return twin
    return next((alike for alike in rows if shared <= set(seeds.get(alike, ()))), twin)


def differ_in_layer_only(one: Settings, other: Settings, *, tuned: Collection[str] = ()) -> bool:
    """Return True if two runs have the same data, network, training and total epochs, whatever their layers.

    A warm start belongs to the layer, and each of its phases has its own warm-up. Options in :data:`OF_LAYER` and
    :data:`OF_MACHINE` may differ, and settings that are ``tuned``.
    """
    ignored = {*(f"train.{name}" for name in (*OF_LAYER, *OF_MACHINE)), *tuned}
    if one.warm_start or other.warm_start:
        ignored.add("train.warmup_epochs")
    shared = [
        {key: value for key, value in settings.flat().items() if not key.startswith(("layer", "warm_start"))}
        | {"train.epochs": settings.epochs}
        | dict.fromkeys(ignored)
        for settings in (one, other)
    ]
    return shared[0] == shared[1]


def _kind(run: EvaluatedRun) -> tuple[str, ...]:
    """Return the preset and the changed settings: the same for runs that differ in seed, machine or place of data."""
    changes = train_command(run.preset, run.settings).split(" --set ")[1:]
    own = ("train.seed=", "train.accelerator=", "data.path=")  # the data are compared by their content
    return (run.preset, *(each for each in changes if not each.lstrip("'").startswith(own)))


def _label(kind: tuple[str, ...], settings: Mapping[tuple[str, ...], Settings]) -> str:
    """Return the preset's name, with the changed settings if another run differs from this one by them.

    Changes that all runs have are left out. Runs of another preset count if both presets differ in the layer only.
    """
    preset, *changes = kind
    common = set.intersection(*(set(other[1:]) for other in settings))
    changes = [each for each in changes if each not in common]
    for other in settings if changes else ():
        if other[0] == preset:
            differs = other != kind
        else:
            twins = (
                preset in PRESETS and other[0] in PRESETS and differ_in_layer_only(PRESETS[preset], PRESETS[other[0]])
            )
            differs = twins and not differ_in_layer_only(settings[kind], settings[other])
        if differs:
            return f"{preset} ({', '.join(changes)})"
    return preset


def _unfinished(runs: Sequence[EvaluatedRun]) -> str:
    """Return the epochs of runs that were stopped early, by seed unless all are the same, as a suffix of a label."""
    progress = {run.settings.train.seed: run.unfinished for run in runs if run.unfinished}
    if not progress:
        return ""
    if len(progress) == len(runs) and len(set(progress.values())) == 1:
        return f" ({runs[0].unfinished})"
    return f" ({', '.join(f'seed {seed}: {each}' for seed, each in progress.items())})"


def _twin(
    kind: tuple[str, ...], settings: Mapping[tuple[str, ...], Settings], tuned: Collection[str]
) -> tuple[str, ...] | None:
    """Return the kind of the softmax twin, preferably with default options; a softmax run is its own."""
    if settings[kind].layer.name == "softmax":
        return kind
    softmax = [
        other
        for other, each in settings.items()
        if each.layer.name == "softmax" and differ_in_layer_only(settings[kind], each, tuned=tuned)
    ]
    return min(softmax, key=lambda other: settings[other].layer != layer_class("softmax")(), default=None)


def ensemble(runs: Sequence[EvaluatedRun]) -> Scores | None:
    """Return the scores of the mixture of runs on their common test sets.

    None for one run, for runs without predictions, and for regressions.
    """
    if len(runs) < 2 or not all(prediction_store.has_predictions(run.folder, methods.POSTERIOR) for run in runs):
        return None
    common = [name for name in runs[0].test_sets if all(name in run.test_sets for run in runs)]
    check_mixable(runs, common)
    stored = [run.predictions(common, methods.POSTERIOR) for run in runs]
    if stored[0]["test"].probs is None:
        return None
    return score({name: mix([each[name] for each in stored]) for name in common})
