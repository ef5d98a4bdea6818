"""Scores of one method: metrics on the test part, other domains, corrupted images and OOD sets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from probattn.inference import Prediction, metrics
from probattn.inference.metrics import ood


@dataclass(frozen=True)
class Scores:
    """Unscaled metrics of one method's predictions, by kind of test set.

    Args:
        test: metrics on the test part.
        domain: other domain → metrics.
        shift: corruption → severity → metrics.
        ood: OOD set → detector → metrics of detection.
    """

    test: dict[str, float]
    domain: dict[str, dict[str, float]] = field(default_factory=dict)
    shift: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)
    ood: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)

    @property
    def mean_shift(self) -> dict[str, float]:
        """Mean of each metric over all corruptions and severities (KEP-SVGP paper, Table 2); empty without them."""
        cells = [values for severities in self.shift.values() for values in severities.values()]
        numbers = {key: [cell[key] for cell in cells] for key in (cells[0] if cells else ())}
        return {key: sum(each) / len(each) for key, each in numbers.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the scores as ``metrics.json`` holds them: kinds without a test set are left out."""
        return {kind: values for kind, values in vars(self).items() if values}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Scores:
        """Read scores back from JSON, whose keys are all strings and whose NaN is null.

        Raises:
            KeyError: scores without ``test``.
        """
        content = _nan_for_null(content)
        shift = {
            corruption: {int(severity): values for severity, values in severities.items()}
            for corruption, severities in content.get("shift", {}).items()
        }
        return cls(content["test"], content.get("domain", {}), shift, content.get("ood", {}))


def score(predictions: Mapping[str, Prediction]) -> Scores:
    """Compute the scores of predictions by test set, named as in :mod:`~probattn.experiments.evaluation.eval_sets`."""
    test = predictions["test"]
    scores = Scores(metrics.evaluate(test))
    for name, prediction in predictions.items():
        kind, _, rest = name.partition("/")
        if kind == "shift":
            corruption, severity = rest.split("/")
            scores.shift.setdefault(corruption, {})[int(severity)] = metrics.evaluate(prediction)
        elif kind == "domain":
            scores.domain[rest] = metrics.evaluate(prediction)
        elif kind == "ood":
            scores.ood[rest] = ood.evaluate(test, prediction, fitted_on=predictions["valid"])
    return scores


def _nan_for_null(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _nan_for_null(value) for key, value in content.items()}
    return math.nan if content is None else content
