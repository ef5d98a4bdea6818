"""The scores of a method's predictions: of its test part, other domains, each corruption and severity, foreign sets."""

import math
from collections.abc import Mapping
from typing import Any

from probattn.inference import Prediction, metrics
from probattn.inference.metrics import ood


def scores(predictions: Mapping[str, Prediction]) -> dict[str, Any]:
    """Scores by set, where the sets are named as in :mod:`probattn.experiments.evaluation.prediction_store`.

    Returns:
        ``test``: metrics; ``domain``: name → metrics;
        ``shift``: corruption → severity → metrics; ``ood``: set → detector → metrics of detection.
    """
    test, valid = predictions["test"], predictions["valid"]
    found: dict[str, Any] = {"test": metrics.evaluate_prediction(test)}
    for name, prediction in predictions.items():
        kind, *rest = name.split("/")
        if kind == "shift":
            corruption, severity = rest
            values = metrics.evaluate_prediction(prediction)
            found.setdefault("shift", {}).setdefault(corruption, {})[int(severity)] = values
        elif kind == "domain":
            found.setdefault("domain", {})["/".join(rest)] = metrics.evaluate_prediction(prediction)
        elif kind == "ood":
            found.setdefault("ood", {})["/".join(rest)] = ood.evaluate(test, prediction, fitted_on=valid)
    return found


def mean_shift(found: Mapping[str, Any]) -> dict[str, float]:
    """Each metric's mean over all corruptions and severities (KEP-SVGP paper, Table 2); nothing where there is none."""
    cells = [values for severities in found.get("shift", {}).values() for values in severities.values()]
    numbers = {key: [cell[key] for cell in cells] for key in (cells[0] if cells else ())}
    return {key: sum(each) / len(each) for key, each in numbers.items()}


def from_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """Scores as :func:`scores` made them, from what JSON made of them: its keys are all strings, its NaN null."""
    found = dict(content)
    if "shift" in found:
        found["shift"] = {
            corruption: {int(severity): _numbers(values) for severity, values in severities.items()}
            for corruption, severities in content["shift"].items()
        }
    if "domain" in found:
        found["domain"] = {name: _numbers(values) for name, values in content["domain"].items()}
    return found | {"test": _numbers(content["test"])}


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    return {key: math.nan if value is None else value for key, value in values.items()}
