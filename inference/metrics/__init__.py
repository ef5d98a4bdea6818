"""Metrics of predictions: classification, calibration, selective prediction, OOD detection, regression, multilabel.

May import ``prediction``, ``distributed`` and ``io``.
"""

from probattn.inference.metrics.by_likelihood import evaluate
from probattn.inference.metrics.calibration import ece, mce
from probattn.inference.metrics.classification import accuracy, brier, matthews_corrcoef, nll, rps
from probattn.inference.metrics.display import DISPLAY, MONITORS, MetricDisplay
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
