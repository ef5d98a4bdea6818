"""Decisions of a run's calibration on its test data: answers that are accepted, conformal sets, intervals."""

import math
from typing import Any

from scipy.stats import binomtest
from torch import Tensor

from probattn.experiments.evaluation.calibration import Calibration
from probattn.inference import Prediction
from probattn.inference.metrics import regression

Evaluated = dict[str, dict[str, float]]
"""Kind of decision → its measures."""


def decide(calibration: Calibration, test: Prediction) -> Evaluated:
    """Evaluate decisions on test data.

    Returns:
        For classes ``abstention`` (count of the accepted answers, their share and risk, its exact 95 % interval), ``plain
        sets`` and ``by-class sets`` (coverage and mean size); for numbers ``predicted intervals`` and ``conformal
        intervals`` (coverage and mean width).
    """
    if test.probs is None:
        ends = {"predicted": regression.interval(test, calibration.level), "conformal": calibration.intervals(test)}
        return {f"{kind} intervals": _interval_scores(*pair, test.labels) for kind, pair in ends.items()}
    probs, labels = calibration.apply(test).probs, test.labels
    accepted = calibration.accepts(probs)
    count, wrong = int(accepted.sum()), int((accepted & (probs.argmax(1) != labels)).sum())
    abstention = {"accepted": count, "coverage": count / len(labels)}
    if count:
        interval = binomtest(wrong, count).proportion_ci(method="exact")
        abstention |= {"risk": wrong / count, "low": float(interval.low), "high": float(interval.high)}
    evaluated = {"abstention": abstention}
    for kind in ("plain", "by-class"):
        sets = calibration.sets(probs, by_class=kind == "by-class")
        coverage = covered(sets, labels).double().mean().item()
        evaluated[f"{kind} sets"] = {"coverage": coverage, "size": sets.sum(1).double().mean().item()}
    return evaluated


def by_class(calibration: Calibration, test: Prediction, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return class, count, accuracy, and coverage of plain and of by-class sets, for classes with test examples."""
    probs, labels = calibration.apply(test).probs, test.labels
    measures = {
        "accuracy": probs.argmax(1) == labels,
        "coverage": covered(calibration.sets(probs), labels),
        "coverage_by_class": covered(calibration.sets(probs, by_class=True), labels),
    }
    rows = []
    for number in labels.unique().tolist():
        chosen = labels == number
        means = {key: value[chosen].double().mean().item() for key, value in measures.items()}
        rows.append({"class": classes[number], "count": int(chosen.sum())} | means)
    return rows


def covered(sets: Tensor, labels: Tensor) -> Tensor:
    """Return which sets, bool ``(n, classes)``, hold their label ``(n,)``."""
    return sets.gather(1, labels[:, None]).squeeze(1)


def describe(calibration: Calibration, evaluated: Evaluated) -> list[str]:
    """Return the decisions and their evaluation as sentences."""
    sentences = []
    for kind, values in evaluated.items():
        if kind == "abstention" and not values["accepted"]:
            sentences.append(f"abstention: no threshold of confidence keeps a risk of {100 * calibration.max_risk:g} %")
        elif kind == "abstention":
            sentences.append(
                f"abstention below a confidence of {calibration.confidence:.4g}, chosen for a risk of at most "
                f"{100 * calibration.max_risk:g} %: {_percent(values['coverage'])} answered, "
                f"{100 * values['risk']:.2f} % of them wrong (exact 95 % interval {100 * values['low']:.2f} to "
                f"{100 * values['high']:.2f} %)"
            )
        else:
            size = values.get("size", values.get("width"))
            unit = "classes on average" if "size" in values else "wide on average"
            number = "unbounded: too few validation data" if math.isinf(size) else f"{size:.4g} {unit}"
            promise = f"{kind} that promise {100 * calibration.level:g} %"
            sentences.append(f"{promise}: {_percent(values['coverage'])} of the test data covered, {number}")
    return sentences


def _interval_scores(low: Tensor, high: Tensor, labels: Tensor) -> dict[str, float]:
    inside = (low <= labels) & (labels <= high)
    return {"coverage": inside.double().mean().item(), "width": (high - low).clamp(min=0).mean().item()}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
