"""Metrics of predictions: classification, calibration, selective prediction, OOD detection, regression, multilabel.

May import ``prediction``, ``distributed`` and ``io``.
"""

from probattn.inference.metrics.by_likelihood import DISPLAY, MONITORS, MetricDisplay, evaluate, label_metrics
from probattn.inference.metrics.classification import (
    accuracy,
    aupr_error,
    aupr_success,
    aurc,
    auroc,
    brier,
    eaurc,
    ece,
    fpr95,
    mcc,
    mce,
    nll,
    risk_coverage,
    rps,
)

__all__ = [
    "DISPLAY",
    "MONITORS",
    "MetricDisplay",
    "accuracy",
    "aupr_error",
    "aupr_success",
    "aurc",
    "auroc",
    "brier",
    "eaurc",
    "ece",
    "evaluate",
    "fpr95",
    "label_metrics",
    "mcc",
    "mce",
    "nll",
    "risk_coverage",
    "rps",
]
