"""Evaluated runs, read from their folders: refused if a run has changed since, or if two cannot be compared."""

import hashlib
import itertools
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.evaluation import predictions
from probattn.experiments.evaluation.calibration import CALIBRATION
from probattn.experiments.runs.folder import read_record
from probattn.inference import Prediction

EVALUATION, SCORES = "evaluation.json", "scores.csv"


@dataclass(frozen=True, eq=False)
class EvaluatedRun:
    """A run with its scores.

    Args:
        folder: the run's folder.
        name: name of its preset.
        settings: of the run.
        scores: of all methods, in the wide form.
        content: of ``evaluation.json``.
    """

    folder: Path
    name: str
    settings: Settings
    scores: pd.DataFrame
    content: dict[str, Any]

    @property
    def seed(self) -> int:
        """Seed of the training."""
        return self.settings.train.seed or 0

    @property
    def draws(self) -> dict[str, int]:
        """Number and seed of the posterior samples of the scores."""
        return {name: self.content["options"][name] for name in ("num_samples", "seed")}

    def predictions(self, names: Collection[str], method: str) -> dict[str, Prediction]:
        """Return the stored predictions by a method on those of some test sets that the scores were computed from."""
        common = {"files": self.content["files"], **self.draws}
        keys = {name: common | {"digest": digest} for name, digest in self.content["data"].items() if name in names}
        stored = {name: predictions.load(self.folder, method, name, key=key) for name, key in keys.items()}
        return {name: prediction for name, prediction in stored.items() if prediction is not None}


def file_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the files that define a run: its weights, its settings, and its preprocessing."""
    files = (path for path in sorted(folder.glob("*.json")) if path.name not in (EVALUATION, CALIBRATION))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "best.pt", *files)}


def read_evaluated_run(folder: Path) -> EvaluatedRun:
    """Read the scores of a run.

    Raises:
        SettingsError: no run, one that was not evaluated, or a run that has changed since.
    """
    record, advice = read_record(folder), f"evaluate it with `probattn evaluate {folder}`"
    try:
        content = json.loads((folder / EVALUATION).read_bytes())
        scores = pd.read_csv(folder / SCORES, dtype={"run": str, "set": str})
    except FileNotFoundError as error:
        raise SettingsError(f"{folder} was not evaluated: {advice}") from error
    if not content["files"].items() <= file_digests(folder).items():
        raise SettingsError(f"weights or settings of {folder} changed since the run was evaluated: {advice} again")
    return EvaluatedRun(folder, record.name, record.settings, scores, content)


def check_comparable(runs: Sequence[EvaluatedRun]) -> None:
    """Check that runs were scored on the same test data, with the same number and seed of posterior samples.

    A run may lack test sets of another. Of corruptions, whose mean is compared, all runs have the same, or none.

    Raises:
        SettingsError: two runs that cannot be compared; says in what they differ.
    """
    for one, other in itertools.combinations(runs, 2):
        mine, theirs = (run.draws | run.content["data"] | {"valid": ""} for run in (one, other))
        shifts = [{name for name in data if name.startswith("shift/")} for data in (mine, theirs)]
        names = mine.keys() & theirs.keys() | (set.union(*shifts) if all(shifts) else set())
        differing = sorted(name for name in names if mine.get(name) != theirs.get(name))
        if differing:
            which = f"{one.folder} and {other.folder} were evaluated on other {', '.join(differing[:3])}"
            raise SettingsError(f"{which}: evaluate both on the same data with the same options")
