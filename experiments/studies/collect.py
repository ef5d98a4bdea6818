"""The rows of a comparison, from the folders of evaluated runs: a row a preset and method, its runs told by seeds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probattn.experiments.config import presets
from probattn.experiments.config.settings import Settings, SettingsError
from probattn.experiments.evaluation import methods, prediction_store
from probattn.experiments.evaluation.scores import from_json, scores
from probattn.experiments.runs.command import train_command
from probattn.experiments.runs.folder import read_record
from probattn.inference.methods.ensemble import mix

SINGLE, ENSEMBLES = "single models", "ensembles"


@dataclass(frozen=True)
class Rows:
    """What a comparison compares.

    Attributes:
        scores: row → seed → scores (see :func:`probattn.experiments.evaluation.scores.scores`).
        baselines: row → the row of its softmax twin, where that is among them.
        groups: heading → rows.
        plain: the rows of runs as they are, without a method on top.
    """

    scores: dict[str, dict[int, dict[str, Any]]]
    baselines: dict[str, str]
    groups: dict[str, list[str]]
    plain: list[str]


def rows(folders: Sequence[Path]) -> Rows:
    """Gathers runs by their settings but for the seed, each with the methods that it was evaluated by.

    Two runs or more of the same settings that keep their predictions also give the row of their ensemble.

    Raises:
        SettingsError: a folder without a run, a run that was not evaluated, two of the same settings and seed, or
            runs of different data.
    """
    if not folders:
        raise SettingsError("nothing to compare: give the folders of evaluated runs")
    records = {folder: read_record(folder) for folder in folders}
    runs = {folder: (record.settings, record.name) for folder, record in records.items()}
    kinds = dict.fromkeys(settings.data.name for settings, _ in runs.values())
    if len(kinds) > 1:
        raise SettingsError(
            f"these runs are of different data, {', '.join(kinds)}: compare those of each by themselves"
        )
    labels = _labels(runs)
    single: dict[str, dict[int, dict[str, Any]]] = {}
    ensembles: dict[str, dict[int, dict[str, Any]]] = {}
    baselines: dict[str, str] = {}
    for label in dict.fromkeys(labels.values()):
        members = [folder for folder in runs if labels[folder] == label]
        twin = presets.twin(runs[members[0]][1])
        for folder in members:
            seed = runs[folder][0].train.seed or 0
            for method, found in _evaluated(folder).items():
                row = " + ".join(filter(None, (label, methods.title(method))))
                if seed in single.setdefault(row, {}):
                    raise SettingsError(
                        f"{folder}: another run of {label} has seed {seed} already; compare one of them"
                    )
                single[row][seed] = found
                if twin in labels.values() and row != twin:
                    baselines[row] = twin
        mixed = _ensemble(members)
        if mixed is not None:
            ensembles[f"{label}, ensemble of {len(members)}"] = {0: mixed}
    groups = {heading: list(part) for heading, part in ((SINGLE, single), (ENSEMBLES, ensembles)) if part}
    return Rows(single | ensembles, baselines, groups, list(dict.fromkeys(labels.values())))


def _labels(runs: Mapping[Path, tuple[Settings, str]]) -> dict[Path, str]:
    """The preset's name, with the changed settings behind it where runs of one preset differ in more than the seed."""
    changed = {}
    for folder, (settings, name) in runs.items():
        words = train_command(name, settings).split(" --set ")[1:]
        changed[folder] = tuple(word for word in words if not word.startswith(("train.seed=", "train.accelerator=")))
    kinds: dict[str, set] = {}
    for folder, (_, name) in runs.items():
        kinds.setdefault(name, set()).add(changed[folder])
    return {
        folder: f"{name} ({', '.join(changed[folder])})" if changed[folder] and len(kinds[name]) > 1 else name
        for folder, (_, name) in runs.items()
    }


def _evaluated(folder: Path) -> dict[str, dict[str, Any]]:
    """Scores by method, from ``metrics.json``."""
    path = folder / "metrics.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = content.get("methods") or {methods.POSTERIOR: {"test": content["metrics"]}}
        return {method: from_json(each) for method, each in found.items()}
    except FileNotFoundError as error:
        raise SettingsError(f"{folder} was not evaluated; do it with `probattn evaluate {folder}`") from error
    except (ValueError, KeyError) as error:
        raise SettingsError(f"{path} cannot be used ({error}); evaluate the run again") from error


def _ensemble(folders: Sequence[Path]) -> dict[str, Any] | None:
    """Scores of the runs' mixture on what all of them predicted; None for one run, or without stored predictions."""
    stored = [prediction_store.stored(folder, methods.POSTERIOR) for folder in folders]
    common = [name for name in stored[0] if all(name in each for each in stored)]
    if len(folders) < 2 or not {"valid", "test"} <= set(common):
        return None
    return scores({name: mix([each[name] for each in stored]) for name in common})
