"""Display of metrics in tables and figures: columns, arrows, units, formatted values."""

import math
from collections.abc import Iterable

from probattn.inference.metrics import OF_CLASSES, OF_LABELS, OF_NUMBERS, Metric

MISSING = "–"
"""Displayed where a value is missing or not finite."""


def columns(keys: Iterable[str]) -> dict[str, Metric]:
    """Return those of some metrics that a table shows, in its order: of classes, of numbers, or of
    binary labels, whichever most of them are."""
    known = set(keys)
    of_kind = max((OF_CLASSES, OF_NUMBERS, OF_LABELS), key=lambda kind: len(known & kind.keys()))
    in_tables = {key: metric for key, metric in of_kind.items() if metric.in_tables}
    return {key: metric for key, metric in in_tables.items() if key in known}


def unit(scale: float) -> str:
    """Return the unit of values that are multiplied by ``scale``: %, ×10³, ×10 or nothing."""
    return {100.0: "%", 1000.0: "×10³", 1.0: ""}.get(scale, f"×{scale:g}")


def heading(metric: Metric) -> str:
    """Return the heading of a metric's column: its title, its unit, and ↑ if higher is better, else
    ↓."""
    arrow = "↑" if metric.higher_is_better else "↓"
    return " ".join(filter(None, (metric.title, unit(metric.scale), arrow)))


def format_value(
    value: float,
    scale: float = 1.0,
    decimals: int = 2,
) -> str:
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
