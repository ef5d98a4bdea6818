"""How metrics are shown in tables, and in which direction they improve."""

from dataclasses import dataclass

from probattn.inference.metrics import regression


@dataclass(frozen=True)
class MetricDisplay:
    """How a metric is shown: ``title``, the factor ``scale`` the papers multiply it by, and its direction."""

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
"""The keys of :func:`evaluate`, in its order, with the display of the papers' tables."""

MONITORS: dict[str, bool] = {
    "log_prob": True,
    **{name: metric.higher_is_better for name, metric in DISPLAY.items()},
    "rps": False,
    **dict.fromkeys(("rmse", "mae", "crps", "pit_error"), False),
    **{f"width_{100 * level:g}": False for level in regression.LEVELS},
    **dict.fromkeys(("label_accuracy", "exact_match", "label_auroc"), True),
    **dict.fromkeys(("label_nll", "label_brier"), False),
}
"""Metrics that can choose the best epoch, each with whether higher is better. Coverage has no such direction."""
