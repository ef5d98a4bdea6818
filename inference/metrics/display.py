"""Titles, scales and directions of metrics in tables, and the metrics that may choose the best epoch."""

from dataclasses import dataclass

from probattn.inference.metrics import regression


@dataclass(frozen=True)
class MetricDisplay:
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
"""Keys of :func:`evaluate`, in its order, with their display in the papers' tables."""

MONITORS: dict[str, bool] = {
    "log_prob": True,
    **{name: metric.higher_is_better for name, metric in DISPLAY.items()},
    "rps": False,
    **dict.fromkeys(("rmse", "mae", "crps", "pit_error"), False),
    **{f"width_{100 * level:g}": False for level in regression.INTERVAL_LEVELS},
    **dict.fromkeys(("label_accuracy", "exact_match", "label_auroc"), True),
    **dict.fromkeys(("label_nll", "label_brier"), False),
}
"""Metrics that may choose the best epoch: True if higher is better. Coverage has no direction."""
