"""Decisions under uncertainty: abstention and conformal sets, chosen on validation data, evaluated on test data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from probattn.inference import Prediction
from probattn.inference.decisions import conformal
from probattn.inference.decisions.abstention import RiskThreshold
from probattn.inference.metrics import regression

TARGET, ALPHA = 0.05, 0.1
"""Largest risk of the accepted answers, and probability with which a conformal set may miss the class."""


@dataclass(frozen=True, eq=False)
class Decisions:
    """Abstention threshold and conformal sets of a run, and their evaluation on its test data.

    Args:
        valid, test: predictions with labels.
        threshold: confidence threshold that keeps the risk below :data:`TARGET`.
        abstention: its :meth:`~probattn.inference.decisions.abstention.RiskThreshold.evaluate` on the test data.
        sets: conformal sets of the test data by kind, here ``plain``; bool ``(n, classes)``.
        conformal: evaluation of the sets by kind.
        quantiles: calibrated quantile of the sets by kind.
    """

    valid: Prediction
    test: Prediction
    threshold: RiskThreshold
    abstention: dict[str, float]
    sets: dict[str, Tensor]
    conformal: dict[str, dict[str, float]]
    quantiles: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the choices and their evaluation as ``metrics.json`` holds them."""
        sets = {
            kind: {"alpha": ALPHA, "quantile": self.quantiles[kind]} | values for kind, values in self.conformal.items()
        }
        threshold = {name: getattr(self.threshold, name) for name in RiskThreshold.fitted_values}
        return {"abstention": threshold | {"test": self.abstention}} | sets

    def describe(self) -> list[str]:
        """Return the choices and their evaluation as sentences."""
        test, sentences = self.abstention, [str(self.threshold)]
        if test["accepted"]:
            sentences.append(
                f"on the test data {100 * test['coverage']:.1f} % are answered, {100 * test['risk']:.2f} % of them "
                f"wrong (exact interval {100 * test['low']:.2f} to {100 * test['high']:.2f} %)"
            )
        for kind, values in self.conformal.items():
            sentences.append(
                f"{kind} conformal sets that promise {100 * (1 - ALPHA):g} %: {100 * values['coverage']:.1f} % of the "
                f"test data covered, {values['size']:.2f} classes on average"
            )
        return sentences


@dataclass(frozen=True, eq=False)
class Intervals:
    """Predictive intervals of a regression on its test data, before and after conformal calibration.

    Args:
        predicted: coverage and width of the central intervals of the posterior predictive.
        conformal: coverage, width and share of empty ones of conformal intervals (CQR).
    """

    predicted: dict[str, float]
    conformal: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as ``metrics.json`` holds it."""
        return {"intervals": {"alpha": ALPHA, "predicted": self.predicted, "conformal": self.conformal}}

    def describe(self) -> list[str]:
        """Return the evaluation as sentences."""
        return [
            f"{name} {100 * (1 - ALPHA):g} % intervals: {_describe(values)}"
            for name, values in (("predicted", self.predicted), ("conformal", self.conformal))
        ]


def _describe(values: Mapping[str, float]) -> str:
    if math.isinf(values["width"]):
        return "unbounded, the validation data are too few to calibrate them"
    return f"{100 * values['coverage']:.1f} % of the test data covered, {values['width']:.4g} wide on average"


def decide(valid: Prediction, test: Prediction) -> Decisions | Intervals:
    """Choose a threshold and conformal sets, or intervals, on validation data, and evaluate them on test data."""
    if test.probs is None:
        low, high = regression.interval(test, 1 - ALPHA)
        covered = (low <= test.labels) & (test.labels <= high)
        predicted = {"coverage": float(covered.double().mean()), "width": float((high - low).mean())}
        calibrated = conformal.CQR(alpha=ALPHA).fit_prediction(valid)
        return Intervals(predicted, calibrated.evaluate(test, test.labels))
    threshold = RiskThreshold(target=TARGET).fit_prediction(valid)
    calibrated = {"plain": conformal.LAC(alpha=ALPHA).fit_prediction(valid)}
    return Decisions(
        valid,
        test,
        threshold,
        threshold.evaluate(test.probs, test.labels),
        {kind: each.sets(test.probs) for kind, each in calibrated.items()},
        {kind: each.evaluate(test.probs, test.labels) for kind, each in calibrated.items()},
        {kind: each.quantile.item() for kind, each in calibrated.items()},
    )
