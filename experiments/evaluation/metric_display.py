"""Display of metrics in tables and figures: columns, arrows, units, formatted values, the best
value of a column."""

import csv
import math
from collections.abc import Collection, Mapping
from importlib.resources import files
from typing import Any, NamedTuple


class MetricDisplay(NamedTuple):
    """Display of a metric.

    Args:
        title: its name in tables.
        scale: factor that it is multiplied by in tables.
        higher_is_better: its direction.
        meaning: explanation in a report.
    """

    title: str
    scale: float
    higher_is_better: bool
    meaning: str = ""


_ROWS = list(
    csv.DictReader((files(__package__) / "metrics.csv").read_text(encoding="utf-8").splitlines())
)


def _read(kind: str) -> dict[str, MetricDisplay]:
    """Return the metrics of a kind by key, in the order of ``metrics.csv``."""
    return {
        row["key"]: MetricDisplay(
            row["title"], float(row["scale"]), row["better"] == "higher", row["meaning"]
        )
        for row in _ROWS
        if row["kind"] == kind
    }


DISPLAY, NUMBERS, OOD_DISPLAY = _read("classes"), _read("numbers"), _read("ood")
"""Display of the metrics of classes in the papers' tables, of numbers, and of OOD detection."""
COLUMNS = ("accuracy", "mcc", "aurc", "auroc", "fpr95", "ece", "nll", "brier")
"""Metrics of a table of classes, in order; one of numbers has all of :data:`NUMBERS`."""
DETECTORS = {row["key"]: row["title"] for row in _ROWS if row["kind"] == "detector"}
"""OOD detectors, in the order of ``ood.scores``, with their titles."""
MISSING = "–"
"""Displayed where a value is missing or not finite."""


def displays(keys: Collection[str]) -> dict[str, MetricDisplay]:
    """Return the columns of a table and their display, for some metrics of classes or of
    numbers."""
    return NUMBERS if "rmse" in keys else {key: DISPLAY[key] for key in COLUMNS}


def unit(scale: float) -> str:
    """Return the unit of values that are multiplied by ``scale``: %, ×10³, ×10 or nothing."""
    return {100.0: "%", 1000.0: "×10³", 1.0: ""}.get(scale, f"×{scale:g}")


def heading(metric: MetricDisplay) -> str:
    """Return the heading of a metric's column: its title, its unit, and ↑ if higher is better, else
    ↓."""
    return " ".join(
        filter(None, (metric.title, unit(metric.scale), "↑" if metric.higher_is_better else "↓"))
    )


def format_value(value: float, scale: float = 1.0, decimals: int = 2) -> str:
    """Return a value as tables display it: scaled, rounded, – if it is not finite, never -0."""
    return f"{scale * value:z.{decimals}f}" if math.isfinite(value) else MISSING


def format_number(value: object) -> str:
    """Return a number of any magnitude with three digits, – if it is not finite; other values as
    text."""
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def best_of(values: Mapping[Any, float], metric: MetricDisplay) -> frozenset:
    """Return the names whose displayed value is best; none if fewer than two are finite, or if all
    are equal."""
    numbers = {
        name: float(format_value(value, metric.scale))
        for name, value in values.items()
        if math.isfinite(value)
    }
    if len(set(numbers.values())) < 2:
        return frozenset()
    best = (max if metric.higher_is_better else min)(numbers.values())
    return frozenset(name for name, number in numbers.items() if number == best)
