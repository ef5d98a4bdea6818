"""Scores of an evaluation as a pandas frame in the wide form: a row for each run, seed, method and test set.

Columns are ``run, seed, method, set, n``, then metrics, unscaled. Sets are ``test``, ``domain/NAME``, ``class/NAME``,
``shift/CORRUPTION/SEVERITY`` and ``ood/NAME``; the metrics of the latter are ``DETECTOR_METRIC``.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from probattn.inference import Prediction, metrics
from probattn.inference.metrics import ood

KEYS = ["run", "seed", "method", "set", "n"]


def score(predictions: Mapping[str, Prediction]) -> dict[str, dict[str, Any]]:
    """Return the number of examples ``n`` and the metrics of one method's predictions, by test set.

    Args:
        predictions: by test set; those on ``valid`` are what detectors of OOD inputs are fitted on.
    """
    scores: dict[str, dict[str, Any]] = {}
    for name in (name for name in predictions if name != "valid"):
        prediction = predictions[name]
        if name.startswith("ood/"):
            detectors = ood.evaluate(predictions["test"], prediction, fitted_on=predictions["valid"])
            values = {f"{key}_{metric}": value for key, row in detectors.items() for metric, value in row.items()}
        else:
            values = metrics.evaluate(prediction)
        scores[name] = {"n": len(prediction)} | values
    return scores


def to_frame(scores: Mapping[str, Mapping[str, Mapping[str, Any]]], *, run: str, seed: int) -> pd.DataFrame:
    """Return the scores of a run, by method and test set, in the wide form."""
    pairs = ((method, name, row) for method, by_set in scores.items() for name, row in by_set.items())
    return pd.DataFrame({"run": run, "seed": seed, "method": method, "set": name, **row} for method, name, row in pairs)


def nested(scores: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return what belongs to the test sets of a kind, such as ``domain``, by the rest of their names."""
    return {name.removeprefix(f"{kind}/"): part for name, part in scores.items() if name.startswith(f"{kind}/")}


def mean_shift(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of each metric over all corruptions and severities, by run, seed and method, as set ``shift``."""
    shifted = frame[frame["set"].str.startswith("shift/")].drop(columns=["set"])
    return shifted.groupby(["run", "seed", "method"], sort=False).mean().reset_index().assign(set="shift")
