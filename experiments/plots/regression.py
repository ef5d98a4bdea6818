"""Predictions of numbers: means with intervals against the truth, and calibration of the quantiles."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from probattn.experiments.evaluation.metric_display import format_value, unit
from probattn.experiments.plots import style
from probattn.inference import Prediction
from probattn.inference.metrics import regression

MOST = 200
"""Largest number of examples that are drawn."""
LEVEL = 0.9
"""Probability of the intervals."""


def predicted(prediction: Prediction, labels: Tensor) -> Figure | None:
    """Draw mean and central 90 % interval of each prediction against the true number; None without finite numbers.

    Args:
        prediction: of numbers, with mean (n, 1).
        labels: (n, 1).
    """
    if not len(labels) or not prediction.mean.isfinite().all():
        return None
    chosen = torch.linspace(0, len(labels) - 1, min(MOST, len(labels))).round().long()
    low, high = (style.to_numpy(each[chosen].flatten()) for each in regression.interval(prediction, LEVEL))
    truth, mean = (style.to_numpy(each[chosen].flatten()) for each in (labels, prediction.mean))
    figure, ax = style.subplots(style.SIZE)
    ax.vlines(truth, low, high, color=style.SKY, lw=1, label=f"{100 * LEVEL:g} % interval")
    ax.plot(truth, mean, ls="", marker="o", ms=3, color=style.BLUE, label="mean")
    ends = np.array([min(truth.min(), low.min()), max(truth.max(), high.max())])
    ax.plot(ends, ends, color=style.INK, lw=1, ls="--", label="perfect")
    ax.set(xlabel="true number", ylabel="prediction")
    ax.set_title(f"RMSE {regression.rmse(prediction, labels):.4g}", **style.HEADING)
    style.legend(figure, most=3)
    return figure


def quantiles(prediction: Prediction, labels: Tensor) -> Figure | None:
    """Draw the share of true numbers below each predicted quantile; None without finite numbers."""
    if not len(labels) or not prediction.mean.isfinite().all():
        return None
    shares = regression.shares_below(prediction, labels, regression.QUANTILE_LEVELS)
    figure, ax = style.subplots(style.SIZE)
    ax.plot([0, 1], [0, 1], color=style.INK, lw=1, ls="--", label="calibrated")
    ax.plot(style.to_numpy(regression.QUANTILE_LEVELS), style.to_numpy(shares), color=style.BLUE, label="this run")
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="level of the quantile", ylabel="share of true numbers below")
    error = format_value(regression.pit_error(prediction, labels), 100)
    ax.set_title(f"Quantiles: PIT error {error} {unit(100)}", **style.HEADING)
    style.percent(ax.xaxis, ax.yaxis)
    style.legend(figure, most=2)
    return figure
