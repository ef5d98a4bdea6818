"""Rows of a comparison, collected from the folders of evaluated runs: a row per settings and method, a run per seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from probattn.experiments.config.presets import PRESETS
from probattn.experiments.config.settings import Settings, SettingsError, SoftmaxSettings
from probattn.experiments.evaluation import methods, prediction_store
from probattn.experiments.evaluation.run_result import describe_unfinished
from probattn.experiments.evaluation.scores import Scores, score
from probattn.experiments.runs.command import train_command
from probattn.experiments.runs.folder import read_record
from probattn.inference.io.sealed_files import read_json
from probattn.inference.methods.ensemble import mix

SINGLE, ENSEMBLES = "single models", "ensembles"
OF_LAYER = ("elbo", "samples_per", "num_particles", "vectorize", "num_samples", "kl_weight", "local_kl_weight",
            "kl_anneal_epochs", "alpha_start", "alpha_end")  # fmt: skip
"""Training options of a layer's latent variables and regulariser, which softmax attention lacks."""
OF_MACHINE = ("seed", "accelerator", "devices", "capture", "compile", "deterministic", "log_every")
"""Training options that change nothing but the seed, or how fast and where a run is computed."""


@dataclass(frozen=True)
class Rows:
    """Rows of a comparison.

    Args:
        scores: row → seed → scores.
        baselines: row → the row of its softmax twin, if that is among them.
        groups: heading → rows.
        plain: the rows of the posterior predictive.
    """

    scores: dict[str, dict[int, Scores]]
    baselines: dict[str, str]
    groups: dict[str, list[str]]
    plain: list[str]


@dataclass(frozen=True)
class EvaluatedRun:
    """A run with its scores by method, and the epochs of one that was stopped early, such as "30 of 40 epochs"."""

    folder: Path
    preset: str
    settings: Settings
    scores: dict[str, Scores]
    unfinished: str

    @property
    def kind(self) -> tuple[str, ...]:
        """The preset and the changed settings: the same for runs that differ in their seed alone."""
        changes = train_command(self.preset, self.settings).split(" --set ")[1:]
        return (self.preset, *(each for each in changes if not each.startswith(("train.seed=", "train.accelerator="))))


def rows(folders: Sequence[Path]) -> Rows:
    """Collect runs into rows, one for all seeds of a kind and each method that it was evaluated by.

    Several runs of a kind that keep their predictions also have a row for their ensemble.

    Raises:
        SettingsError: a folder without a run, a run that was not evaluated, two of the same settings and seed, or
            runs on different data.
    """
    if not folders:
        raise SettingsError("nothing to compare: give the folders of evaluated runs")
    runs = [_load(folder) for folder in folders]
    data = dict.fromkeys(run.settings.data.name for run in runs)
    if len(data) > 1:
        raise SettingsError(f"these runs are on different data, {', '.join(data)}: compare the runs of each separately")
    kinds: dict[tuple[str, ...], list[EvaluatedRun]] = {}
    for run in runs:
        kinds.setdefault(run.kind, []).append(run)
    settings = {kind: members[0].settings for kind, members in kinds.items()}
    labels = {kind: _label(kind, settings) + _unfinished(members) for kind, members in kinds.items()}
    single: dict[str, dict[int, Scores]] = {}
    ensembles: dict[str, dict[int, Scores]] = {}
    baselines: dict[str, str] = {}
    for kind, members in kinds.items():
        label, twin = labels[kind], labels.get(_twin(kind, settings))
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
                    baselines[row] = twin
        mixed = _ensemble([run.folder for run in members])
        if mixed is not None:
            ensembles[f"{label}, ensemble of {len(members)}"] = {0: mixed}
    groups = {heading: list(part) for heading, part in ((SINGLE, single), (ENSEMBLES, ensembles)) if part}
    return Rows(single | ensembles, baselines, groups, list(labels.values()))


def differ_in_layer_only(one: Settings, other: Settings) -> bool:
    """Return True if two runs have the same data, network, training and total epochs, whatever their layers.

    A warm start belongs to the layer, and each of its phases has its own warm-up. Options in :data:`OF_LAYER` and
    :data:`OF_MACHINE` may differ.
    """
    ignored = {f"train.{name}" for name in (*OF_LAYER, *OF_MACHINE)}
    if one.warm_start or other.warm_start:
        ignored.add("train.warmup_epochs")
    shared = [
        {key: value for key, value in settings.flat().items() if not key.startswith(("layer", "warm_start"))}
        | {"train.epochs": settings.epochs}
        | dict.fromkeys(ignored)
        for settings in (one, other)
    ]
    return shared[0] == shared[1]


def _load(folder: Path) -> EvaluatedRun:
    record = read_record(folder)
    settings, preset = record.settings, record.name
    path = folder / "metrics.json"
    try:
        content = read_json(path, advice="evaluate the run again")
        by_method = content.get("methods") or {methods.POSTERIOR: {"test": content["metrics"]}}
        scores = {method: Scores.from_json(each) for method, each in by_method.items()}
    except FileNotFoundError as error:
        raise SettingsError(f"{folder} was not evaluated; do it with `probattn evaluate {folder}`") from error
    except (ValueError, KeyError) as error:
        raise SettingsError(f"{path} cannot be used ({error}); evaluate the run again") from error
    progress = {"epochs_done": content.get("epochs_done"), "best_epoch": content.get("best_epoch", 0)}
    return EvaluatedRun(folder, preset, settings, scores, describe_unfinished(settings.train, **progress))


def _label(kind: tuple[str, ...], settings: Mapping[tuple[str, ...], Settings]) -> str:
    """Return the preset's name, with the changed settings if another run differs from this one by them.

    Runs of another preset count if both presets differ in the layer only.
    """
    preset, *changes = kind
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


def _twin(kind: tuple[str, ...], settings: Mapping[tuple[str, ...], Settings]) -> tuple[str, ...] | None:
    """Return the kind of the softmax twin, preferably with default options; a softmax run is its own."""
    if isinstance(settings[kind].layer, SoftmaxSettings):
        return kind
    softmax = [
        other
        for other, each in settings.items()
        if isinstance(each.layer, SoftmaxSettings) and differ_in_layer_only(settings[kind], each)
    ]
    return min(softmax, key=lambda other: settings[other].layer != SoftmaxSettings(), default=None)


def _ensemble(folders: Sequence[Path]) -> Scores | None:
    """Return the scores of the mixture of runs on their common test sets; None for one run, or without predictions."""
    stored = [prediction_store.load_predictions(folder, methods.POSTERIOR) for folder in folders]
    common = [name for name in stored[0] if all(name in each for each in stored)]
    if len(folders) < 2 or not {"valid", "test"} <= set(common):
        return None
    return score({name: mix([each[name] for each in stored]) for name in common})
