"""Metrics of predictions: classification, calibration, selective prediction, OOD detection, regression, multilabel.

May import ``prediction``, ``distributed`` and ``io``.
"""

from probattn.inference.metrics.by_likelihood import evaluate
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
    matthews_corrcoef,
    mce,
    nll,
    risk_coverage,
    rps,
)
from probattn.inference.metrics.display import DISPLAY, MONITORS, MetricDisplay

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
    "matthews_corrcoef",
    "mce",
    "nll",
    "risk_coverage",
    "rps",
]
