"""Evaluated runs as rows of a comparison: a row for all seeds of one kind of run, and its ensemble."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from probattn.experiments.config.layers import layer_class
from probattn.experiments.config.presets import preset
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.evaluation.evaluated_run import EvaluatedRun, check_comparable, read_evaluated_run
from probattn.experiments.evaluation.example_intervals import resampled_metrics
from probattn.experiments.evaluation.methods import ENSEMBLE, POSTERIOR, row_label
from probattn.experiments.evaluation.scores import score, to_frame
from probattn.experiments.evaluation.seed_statistics import Resampled
from probattn.inference.methods.ensemble import mix

OF_LAYER = ("elbo", "samples_per", "num_particles", "vectorize", "num_samples", "kl_weight", "local_kl_weight",
            "kl_anneal_epochs", "alpha_start", "alpha_end", "guide_lr", "guide_optimizer")  # fmt: skip
"""Training options of a layer's latent variables and regulariser, which softmax attention lacks."""
OF_MACHINE = ("seed", "accelerator", "devices", "compile", "deterministic", "log_every", "checkpoint_every")
"""Training options that change nothing but the seed, or how fast and where a run is computed."""
Runs = dict[str, list[EvaluatedRun]]
"""Label of a kind of run → its runs, one for each seed."""


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the folders of runs: those given, and those at any depth below given folders.

    Raises:
        SettingsError: a path without a run.
    """
    runs: list[Path] = []
    for path in paths:
        inside = [path] if (path / "settings.json").exists() else [file.parent for file in path.rglob("settings.json")]
        if not inside:
            raise SettingsError(f"{path} holds no run: name a run's folder, a folder of runs, or a results.csv")
        runs += sorted(inside)
    return list(dict.fromkeys(runs))


def read_runs(paths: Sequence[Path]) -> Runs:
    """Read evaluated runs, grouped by what they are: preset, layer, and settings where they differ.

    Args:
        paths: folders of runs, or folders that hold them at any depth.

    Raises:
        SettingsError: no run, one that was not evaluated or has changed since, two of the same settings and seed, or
            runs with other test data or posterior samples.
    """
    kinds: dict[tuple[str, ...], list[EvaluatedRun]] = {}
    for run in map(read_evaluated_run, find_runs(paths)):
        kinds.setdefault(_kind(run), []).append(run)
    check_comparable([run for runs in kinds.values() for run in runs])
    labelled: Runs = {}
    layers = {(name, layer) for name, layer, *_ in kinds}
    for (name, layer, *changes), runs in kinds.items():
        same = [set(kind) for kind in kinds if kind[:2] == (name, layer)]
        differing = [change for change in changes if not all(change in other for other in same)]
        unfinished = dict.fromkeys(run.content["unfinished"] for run in runs)
        several = len({other for title, other in layers if title == name}) > 1
        label = f"{name} {layer}" if several or layer != preset(name).layer.name else name
        label += f" ({', '.join(differing)})" if differing else ""
        label += "".join(f" ({text})" for text in unfinished if text)
        seeds = [run.seed for run in runs]
        if len(set(seeds)) < len(seeds):
            raise SettingsError(f"two runs of {label} have the same seed ({', '.join(map(str, seeds))}): leave one out")
        labelled[label] = runs
    return labelled


def rows(paths: Sequence[Path]) -> pd.DataFrame:
    """Return the scores of evaluated runs in the wide form, those of ensembles of several seeds included.

    Args:
        paths: folders of runs, or folders that hold them at any depth.

    Raises:
        SettingsError: as for :func:`read_runs`.
    """
    return to_rows(read_runs(paths))


def to_rows(runs: Runs) -> pd.DataFrame:
    """Return the scores of runs in the wide form."""
    frames = []
    for label, members in runs.items():
        frames += [run.scores.assign(run=label) for run in members]
        if ensemble := _ensemble(members):
            frames.append(to_frame({f"{ENSEMBLE} of {len(members)}": ensemble}, run=label, seed=0))
    return pd.concat(frames, ignore_index=True)


def baselines(runs: Runs) -> dict[str, str]:
    """Return the softmax twin of each kind of run, which differs in the layer only; a softmax run is its own."""
    settings, plain = {label: members[0].settings for label, members in runs.items()}, layer_class("softmax")()
    softmax = [label for label in settings if settings[label].layer.name == "softmax"]
    softmax.sort(key=lambda label: settings[label].layer != plain)
    twins = {}
    for label, ours in settings.items():
        alike = [label] if label in softmax else softmax
        twins[label] = next((other for other in alike if differ_in_layer_only(ours, settings[other])), "")
    return twins


def differ_in_layer_only(one: Settings, other: Settings) -> bool:
    """Return True if two runs have the same data, network, training and total epochs, whatever their layers.

    A warm start belongs to the layer, and each of its phases has its own warm-up. Options in :data:`OF_LAYER` and
    :data:`OF_MACHINE` may differ.
    """
    ignored = {"data.path", "train.epochs", *(f"train.{name}" for name in OF_LAYER + OF_MACHINE)}
    ignored |= {"train.warmup_epochs"} if one.warm_start or other.warm_start else set()
    ours, theirs = (
        {key: value for key, value in settings.flat().items() if not key.startswith(("layer", "warm_start"))}
        for settings in (one, other)
    )
    differing = {key for key in ours | theirs if ours.get(key) != theirs.get(key)}
    return differing <= ignored and one.epochs == other.epochs


def resampled(runs: Runs) -> dict[str, Resampled]:
    """Return metrics on resampled examples, by test set and row, of single seeds with stored predictions."""
    values: dict[str, dict[str, dict]] = {}
    for label, (run, *others) in runs.items():
        names = [] if others else [name for name in run.content["data"] if name.startswith(("test", "domain/"))]
        for method in run.scores["method"].unique():
            for name, prediction in run.predictions(names, method).items():
                values.setdefault(name, {})[row_label(label, method)] = resampled_metrics(prediction)
    return values


def _kind(run: EvaluatedRun) -> tuple[str, ...]:
    """Return preset, layer and changed settings; the same for other seeds, machines or places of the data."""
    ignored = ("train.seed=", "train.accelerator=", "data.path=")  # the data are compared by their content
    changes = run.settings.changes_from(preset(run.name))
    return run.name, run.settings.layer.name, *(change for change in changes if not change.startswith(ignored))


def _ensemble(runs: Sequence[EvaluatedRun]) -> Mapping | None:
    """Return the scores of the mixture of runs on their common test sets; None for one run, or for numbers."""
    common = set.intersection(*(set(run.content["data"].items()) for run in runs))
    names = [name for name, digest in runs[0].content["data"].items() if (name, digest) in common]
    members = [run.predictions(names, POSTERIOR) for run in runs]
    names = [name for name in names if all(name in member for member in members)]
    if len(runs) < 2 or not {"valid", "test"} <= set(names) or members[0]["test"].probs is None:
        return None
    return score({name: mix([member[name] for member in members]) for name in names})
