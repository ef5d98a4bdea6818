"""Predictions of numbers: means with intervals against the truth, and calibration of the quantiles.

Mean and labels of a prediction are ``(n, 1)``.
"""

import torch
from matplotlib.figure import Figure

from probattn.experiments.plots import style
from probattn.inference import Prediction
from probattn.inference.metrics import regression

EXAMPLES = 200
"""Largest number of examples that are drawn."""


def predicted(prediction: Prediction) -> Figure:
    """Draw mean and central 90 % interval of each prediction against the true number, of many examples some."""
    chosen = torch.linspace(0, len(prediction) - 1, min(EXAMPLES, len(prediction))).round().long()
    values = (*regression.interval(prediction, 0.9), prediction.labels, prediction.mean)
    low, high, truth, mean = (part[chosen].flatten().cpu().double().numpy() for part in values)
    figure, (ax,) = style.panels(width=4.6, height=3.5)
    ax.vlines(truth, low, high, color=style.SKY, lw=1, label="90 % interval")
    ax.plot(truth, mean, ls="", marker="o", ms=3, color=style.BLUE, label="mean")
    ends = [min(truth.min(), low.min()), max(truth.max(), high.max())]
    ax.plot(ends, ends, color=style.INK, lw=1, ls="--", label="perfect")
    ax.set(xlabel="true number", ylabel="prediction")
    style.legend(figure)
    return figure


def quantiles(prediction: Prediction) -> Figure:
    """Draw the share of true numbers below each predicted quantile."""
    levels = regression.QUANTILE_LEVELS
    shares = regression.shares_below(prediction, prediction.labels, levels)
    figure, (ax,) = style.panels(width=4.6, height=3.5)
    ax.plot([0, 1], [0, 1], color=style.INK, lw=1, ls="--", label="calibrated")
    ax.plot(levels.tolist(), shares.flatten().tolist(), color=style.BLUE, label="this run")
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="level of the quantile", ylabel="share of true numbers below")
    style.percent(ax.xaxis, ax.yaxis)
    style.legend(figure)
    return figure
