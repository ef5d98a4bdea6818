"""Columns of metric tables, and how their heads are written."""

from probattn.inference.metrics import MetricDisplay

COLUMNS = ("accuracy", "mcc", "aurc", "auroc", "fpr95", "ece", "nll", "brier")


def scale_name(scale: float) -> str:
    """Return how a column's scale is written: %, ×10³, ×10 or nothing."""
    return {100: "%", 1000: "×10³", 10: "×10", 1: ""}.get(scale, f"×{scale:g}")


def arrow(metric: MetricDisplay) -> str:
    """Return ↑ where higher is better, else ↓."""
    return "↑" if metric.higher_is_better else "↓"
