"""Metrics of predictions: classification, calibration, selective prediction, OOD detection, regression, labels.

May import ``prediction`` and what is above it.
"""

from probattn.inference.metrics.by_likelihood import evaluate_prediction, is_binary
from probattn.inference.metrics.calibration import ece, mce
from probattn.inference.metrics.classification import accuracy, brier, evaluate, matthews, nll, rps
from probattn.inference.metrics.display import DISPLAY, MONITORS, MetricDisplay
from probattn.inference.metrics.inputs import checked
from probattn.inference.metrics.selective import (
    aupr_error,
    aupr_success,
    aurc,
    auroc,
    eaurc,
    fpr95,
    risk_coverage,
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
    "checked",
    "eaurc",
    "ece",
    "evaluate",
    "evaluate_prediction",
    "fpr95",
    "is_binary",
    "matthews",
    "mce",
    "nll",
    "risk_coverage",
    "rps",
]
