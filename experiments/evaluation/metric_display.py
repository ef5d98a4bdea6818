"""Display of metrics in tables and figures: columns, arrows, units, formatted values, the best value of a column."""

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple


class MetricDisplay(NamedTuple):
    """Display of a metric: its ``title``, the factor ``scale`` it is multiplied by in tables, and its direction."""

    title: str
    scale: float
    higher_is_better: bool


DISPLAY: dict[str, MetricDisplay] = {
    "accuracy": MetricDisplay("ACC", 100, higher_is_better=True),
    "mcc": MetricDisplay("MCC", 100, higher_is_better=True),
    "aurc": MetricDisplay("AURC", 1000, higher_is_better=False),
    "eaurc": MetricDisplay("E-AURC", 1000, higher_is_better=False),
    "auroc": MetricDisplay("AUROC", 100, higher_is_better=True),
    "aupr_success": MetricDisplay("AUPR-Success", 100, higher_is_better=True),
    "aupr_error": MetricDisplay("AUPR-Error", 100, higher_is_better=True),
    "fpr95": MetricDisplay("FPR95", 100, higher_is_better=False),
    "ece": MetricDisplay("ECE", 100, higher_is_better=False),
    "mce": MetricDisplay("MCE", 100, higher_is_better=False),
    "nll": MetricDisplay("NLL", 10, higher_is_better=False),
    "brier": MetricDisplay("Brier", 100, higher_is_better=False),
}
"""Metrics of classes, in the order of ``metrics.evaluate``, with their display in the papers' tables."""
OOD_DISPLAY: dict[str, MetricDisplay] = {
    "auroc": MetricDisplay("AUROC", 100, higher_is_better=True),
    "aupr_in": MetricDisplay("AUPR-in", 100, higher_is_better=True),
    "aupr_out": MetricDisplay("AUPR-out", 100, higher_is_better=True),
    "fpr95_in": MetricDisplay("FPR95-in", 100, higher_is_better=False),
    "fpr95_out": MetricDisplay("FPR95-out", 100, higher_is_better=False),
}
"""Metrics of OOD detection, in the order of ``ood.detection_metrics``, with their display."""
DETECTORS: dict[str, str] = {
    "kl_matching": "KLMatching",
    "max_softmax": "MaxSoftmax",
    "entropy": "Entropy",
    "energy": "Energy",
    "mutual_information": "Mutual information",
}
"""OOD detectors, in the order of ``ood.scores``, with their titles."""
NUMBERS: dict[str, MetricDisplay] = {
    "rmse": MetricDisplay("RMSE", 1, higher_is_better=False),
    "mae": MetricDisplay("MAE", 1, higher_is_better=False),
    "crps": MetricDisplay("CRPS", 1, higher_is_better=False),
    "nll": MetricDisplay("NLL", 1, higher_is_better=False),
    "pit_error": MetricDisplay("PIT error", 100, higher_is_better=False),
    "width_90": MetricDisplay("width 90 %", 1, higher_is_better=False),
}
"""Metrics of a table of regressions, in order, with their display; of classes, see :data:`COLUMNS`."""
COLUMNS = ("accuracy", "mcc", "aurc", "auroc", "fpr95", "ece", "nll", "brier")
"""Metrics of a table, in order."""
MISSING = "–"
"""Displayed where a value is missing or not finite."""


def displays(keys: Collection[str]) -> dict[str, MetricDisplay]:
    """Return the columns of a table and their display, for some metrics of classes or of numbers."""
    if "rmse" in keys:
        return NUMBERS
    return {key: DISPLAY[key] for key in COLUMNS}


def unit(scale: float) -> str:
    """Return the unit of values that are multiplied by ``scale``: %, ×10³, ×10 or nothing."""
    return {100: "%", 1000: "×10³", 10: "×10", 1: ""}.get(scale, f"×{scale:g}")


def arrow(metric: MetricDisplay) -> str:
    """Return ↑ if higher is better, else ↓."""
    return "↑" if metric.higher_is_better else "↓"


def format_value(value: float, scale: float = 1.0, decimals: int = 2) -> str:
    """Return a value as tables display it: scaled, rounded, – if it is not finite, never -0."""
    return f"{scale * value:z.{decimals}f}" if math.isfinite(value) else MISSING


def format_number(value: object) -> str:
    """Return a number of any magnitude with three digits, – if it is not finite; other values as text."""
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def best_of(values: Mapping[Any, float], metric: MetricDisplay, decimals: int = 2) -> frozenset:
    """Return the names whose displayed value is best; none if fewer than two are finite, or if all are equal."""
    texts = {name: format_value(value, metric.scale, decimals) for name, value in values.items()}
    numbers = {name: float(text) for name, text in texts.items() if text != MISSING}
    if len(set(numbers.values())) < 2:
        return frozenset()
    best = (max if metric.higher_is_better else min)(numbers.values())
    return frozenset(name for name, number in numbers.items() if number == best)
