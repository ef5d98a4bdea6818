"""Scores and predictions of evaluated runs, refused if a run has changed, or if two cannot be
compared.

Scores are pandas frames in the wide form, a row for each run, seed, method and test set:
``run, seed, method, set, n``, then metrics, unscaled. Sets are ``test``, ``domain/NAME``,
``class/NAME``, ``shift/CORRUPTION/SEVERITY`` and ``ood/NAME``; the metrics of the latter are
``DETECTOR_METRIC``.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro.distributions as dist
import torch

from probattn.experiments.config.schema import Trust
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.images.corruptions import PHOTOMETRIC
from probattn.experiments.displayable import displayable
from probattn.experiments.evaluation.kept_predictions import (
    read_examples,
    refined_log_prob,
    stored_files,
)
from probattn.experiments.runs.folder import SETTINGS, WEIGHTS, RunRecord, read_record
from probattn.inference import Prediction, metrics
from probattn.inference.io.files import (
    file_digest,
    read_archive,
    read_json,
    undamaged,
    write_archive,
)
from probattn.inference.metrics import ood
from probattn.inference.prediction.mixture import innermost, values
from probattn.inference.prediction.result import PER_EXAMPLE

EVALUATION, SCORES = "evaluation.json", "scores.csv"
KEYS = ["run", "seed", "method", "set", "n"]
LAWS = {"Normal": ("loc", "scale"), "StudentT": ("df", "loc", "scale")}
"""Likelihoods of numbers whose parameters are stored; predictions with others are made anew each
time."""


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluatedRun(RunRecord):
    """The record of a run with its scores.

    Args:
        folder: the run's folder.
        scores: of all methods, in the wide form.
        content: of ``evaluation.json``.
    """

    folder: Path
    scores: pd.DataFrame
    content: dict[str, Any]

    @property
    def seed(self) -> int:
        """Seed of the training."""
        return self.settings.train.seed or 0

    def predictions(
        self,
        names: Collection[str],
        method: str,
    ) -> dict[str, Prediction]:
        """Return the stored predictions by a method on those of some test sets that the scores were
        computed from."""
        stored = {}
        for name, digest in self.content["data"].items():
            if name in names:
                file, _ = stored_files(self.folder, method, name)
                stamp = self.content["stamp"] | {"data": digest}
                if (prediction := load_prediction(file, stamp=stamp)) is not None:
                    stored[name] = prediction
        return stored

    def examples(self, name: str, method: str) -> pd.DataFrame | None:
        """Return the kept predictions by a method on the examples of a test set, from which the
        scores were computed; None if they are missing."""
        stamp = self.content["stamp"] | {"data": self.content["data"][name]}
        _, file = stored_files(self.folder, method, name)
        return read_examples(file, stamp=stamp)


def run_stamp(folder: Path) -> dict[str, Any]:
    """Return the SHA-256 of a run's weights and of its settings, on which all its predictions
    depend."""
    return {name: file_digest(folder / name) for name in (WEIGHTS, SETTINGS)}


def read_evaluated_run(folder: Path, *, trust_code: Trust = False) -> EvaluatedRun:
    """Read the scores of a run; ``trust_code`` as for
    :func:`~probattn.experiments.runs.load.open_run`.

    Raises:
        SettingsError: no run, one that was not evaluated or has changed since, or files that are
            damaged.
    """
    record = read_record(folder, trust_code=trust_code)
    advice = f"evaluate it with `probattn evaluate {folder}`"
    for name in (WEIGHTS, EVALUATION, SCORES):
        if not (folder / name).is_file():
            raise SettingsError(f"{folder} was not evaluated: {advice}")
    with undamaged(folder / EVALUATION, SettingsError, advice=advice):
        content = read_json(folder / EVALUATION)
        content |= {name: dict(content[name]) for name in ("stamp", "data")}
        stamp = [content["stamp"][name] for name in (WEIGHTS, SETTINGS, "num_samples", "seed")]
    if stamp[:2] != list(run_stamp(folder).values()):
        raise SettingsError(
            f"weights or settings of {folder} changed since the run was evaluated: {advice} again"
        )
    with undamaged(folder / SCORES, SettingsError, advice=advice):
        scores = pd.read_csv(folder / SCORES, dtype={"run": str, "set": str})
        numbers = scores.drop(columns=["run", "method", "set"])
        numbers.astype({"seed": int, "n": int}).astype(float)
    return EvaluatedRun(**vars(record), folder=folder, scores=scores, content=content)


def check_comparable(runs: Sequence[EvaluatedRun]) -> None:
    """Check that runs were scored on the same test data, with the same number and seed of posterior
    samples.

    Runs whose data were divided by another ``data.seed`` have other examples. A run may lack test
    sets of another. Of corruptions, whose mean is compared, all runs have the same, or none.

    Raises:
        SettingsError: two runs that cannot be compared; says in what they differ.
    """
    first: dict[tuple[int, str], tuple[object, Path]] = {}
    for run in runs:
        stamp, data = run.content["stamp"], run.content["data"]
        content = {"num_samples": stamp["num_samples"], "seed": stamp["seed"]} | data
        content.pop("valid", None)
        if corruptions := {name for name in data if name.startswith("shift/")}:
            content["corruptions"] = corruptions
        for name, value in content.items():
            key = run.settings.data.seed, name
            expected, folder = first.setdefault(key, (value, run.folder))
            if value != expected:
                raise SettingsError(
                    f"{folder} and {run.folder} were evaluated on other {name}: evaluate both on "
                    "the same data with the same options"
                )


def load_prediction(file: Path, *, stamp: Mapping[str, Any]) -> Prediction | None:
    """Return a stored prediction with this stamp; None without a file, or if it is damaged."""
    try:
        content = read_archive(file)
        if content["stamp"] != dict(stamp):
            return None
        laws = [
            getattr(dist, law)(**parameters).to_event(1)
            for law, parameters in content["laws"].items()
        ]
        return Prediction(components=tuple(laws), **content["fields"])
    except Exception:  # of many types; what is not there is predicted
        return None


def save_prediction(
    file: Path,
    prediction: Prediction,
    *,
    stamp: Mapping[str, Any],
) -> None:
    """Write a prediction, unless its likelihood is none of :data:`LAWS`.

    Args:
        file: its file.
        prediction: the prediction.
        stamp: what it depends on: :func:`run_stamp`, and the digest of the examples.
    """
    laws: dict[str, dict[str, torch.Tensor]] = {}
    if parts := prediction.components:
        law = type(innermost(parts[0])).__name__
        if law not in LAWS:
            return
        laws[law] = {}
        for name in LAWS[law]:
            parameter = [values(part, name) for part in parts]
            laws[law][name] = torch.cat(parameter, 1).cpu()
    known = {name: getattr(prediction, name) for name in PER_EXAMPLE}
    fields = {name: value.cpu() for name, value in known.items() if value is not None}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_archive(file, {"stamp": dict(stamp), "laws": laws, "fields": fields}, tag="part")


def score(predictions: Mapping[str, Prediction]) -> dict[str, dict[str, Any]]:
    """Return the number of examples ``n`` and the metrics of one method's predictions, by test set.

    Args:
        predictions: by test set; those on ``valid`` are what detectors of OOD inputs are fitted on.
    """
    scores: dict[str, dict[str, Any]] = {}
    for name, prediction in predictions.items():
        if name == "valid":
            continue
        scores[name] = {"n": len(prediction)}
        if not name.startswith("ood/"):
            scores[name] |= metrics.evaluate(prediction)
            if name.startswith(("test", "domain/")):
                refined = refined_log_prob(prediction)
                scores[name] |= {} if refined is None else {"refinement": -float(refined.mean())}
            continue
        detectors = ood.evaluate(predictions["test"], prediction, fitted_on=predictions["valid"])
        for detector, row in detectors.items():
            scores[name] |= {f"{detector}_{metric}": value for metric, value in row.items()}
    return scores


def to_frame(
    scores: Mapping[str, Mapping[str, Mapping[str, Any]]],
    *,
    run: str,
    seed: int,
) -> pd.DataFrame:
    """Return the scores of a run, by method and test set, in the wide form."""
    rows = []
    for method, by_set in scores.items():
        for name, row in by_set.items():
            # Displayable, since pandas refuses surrogates.
            of_set = {"run": run, "seed": seed, "method": method, "set": displayable(name)}
            rows.append(of_set | dict(row))
    return pd.DataFrame(rows)


def mean_shifts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the means of each metric over corruptions and severities, by run, seed and method.

    Set ``shift`` is of all, ``shift/photometric`` of those in :data:`PHOTOMETRIC`, ``shift/other``
    of the others.

    Args:
        frame: scores in the wide form.
    """
    corruption = frame["set"].str.extract("^shift/(.+)/", expand=False)
    of_all = frame[corruption.notna()].assign(set="shift")
    is_photometric = corruption.dropna().isin(PHOTOMETRIC)
    kinds = np.where(is_photometric, "shift/photometric", "shift/other")
    chosen = pd.concat([of_all, of_all.assign(set=kinds)])
    means = chosen.groupby(["run", "seed", "method", "set"], sort=False).mean()
    return means.reset_index()
