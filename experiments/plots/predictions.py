"""Calibration and selective prediction: reliability diagram, risk–coverage curve, histograms of the confidence.

``probs`` is ``(n, classes)`` and ``labels`` ``(n,)``; the confidence is the largest probability, the answer its class.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from probattn.experiments.evaluation.metric_display import DISPLAY, format_value, unit
from probattn.experiments.plots import style
from probattn.inference import metrics
from probattn.inference.metrics import confidence_and_correct

BINS = 15


def reliability(probs: Tensor, labels: Tensor) -> Figure | None:
    """Draw accuracy against confidence in 15 bins, the gap to the mean confidence hatched, and the counts below."""
    if not len(labels):
        return None
    confidence, right = (part.numpy() for part in confidence_and_correct(probs, labels))
    bins = np.digitize(confidence, np.linspace(0, 1, BINS + 1)[1:-1])  # [a, b), and 1 in the last one
    full, bins, count = np.unique(bins, return_inverse=True, return_counts=True)
    accuracy, mean = (np.bincount(bins, weights=values) / count for values in (right, confidence))
    width = 1 / BINS
    middle = (full + 0.5) * width
    figure, (top, below) = style.subplots(style.SIZE, 2, sharex=True, height_ratios=(3, 1))
    bar = {"width": 0.94 * width}
    top.bar(middle, accuracy, color=style.SKY, label="accuracy", **bar)
    look = {"facecolor": "none", "edgecolor": style.ORANGE, "hatch": "////", "lw": 1}
    top.bar(middle, mean - accuracy, bottom=accuracy, label="gap to confidence", **look, **bar)
    top.plot([0, 1], [0, 1], color=style.INK, lw=1, ls="--", label="perfect")
    top.set(ylim=(0, 1.02), ylabel="accuracy")
    style.legend(figure, most=3, columnspacing=1.2, handlelength=1.5)
    scale = DISPLAY["ece"].scale
    top.set_title(
        f"Reliability: ECE {format_value(metrics.ece(probs, labels, bins=BINS), scale)} {unit(scale)}", **style.HEADING
    )
    below.bar(middle, count, color=style.GREY, **bar)
    below.set(xlim=(0, 1), xlabel="confidence", ylabel="answers")
    style.set_ticks(below.yaxis, 3, integer=True)
    style.percent(top.xaxis, top.yaxis)
    return figure


def risk_coverage(runs: Mapping[str, tuple[Tensor, Tensor]]) -> Figure | None:
    """Draw the error rate of the answers kept against the share kept, the most confident first; the best is dashed.

    Args:
        runs: name → probs and labels; names are displayed if there are several runs.
    """
    runs = {name: pair for name, pair in runs.items() if len(pair[1])}
    if not runs:
        return None
    figure, ax = style.subplots(style.SIZE if len(runs) == 1 else (5.4, 3.8))
    worst = 0.0
    for number, (name, (probs, labels)) in enumerate(runs.items()):
        coverage, risk = (style.to_numpy(part) for part in metrics.risk_coverage(probs, labels))
        colour = style.colour(number)
        label = style.wrapped(name, 56) if len(runs) > 1 else "this network"
        dots = {"marker": "o", "ms": 3.5} if len(risk) <= 25 else {}
        ax.plot(coverage, risk, color=colour, lw=1.8, label=label, **dots)
        ideal = np.clip(1 - metrics.accuracy(probs, labels) / coverage, 0, None)
        ax.plot(coverage, ideal, color=colour, lw=1, ls="--")
        worst = max(worst, risk[len(risk) // 20 :].max())  # the first few answers alone jump between 0 and 1
    ax.plot([], [], color=style.INK, lw=1, ls="--", label="best possible at this accuracy")
    # up to 1.01, so that the last point is whole
    ax.set(xlim=(0, 1.01), xlabel="coverage: share of answers kept, the most confident first")
    ax.set(ylim=(-0.02 * (worst or 0.1), 1.12 * worst or 0.1), ylabel="risk: share of these that are wrong")
    style.percent(ax.xaxis, ax.yaxis)
    ax.set_title("Risk–coverage", **style.HEADING)
    style.legend(figure, most=2 if len(runs) == 1 else 1)
    return figure


def confidence(probs: Tensor, labels: Tensor) -> Figure | None:
    """Draw histograms of the confidence of right answers (above) and wrong answers (below), each normalised."""
    if not len(labels):
        return None
    value, right = (part.numpy() for part in confidence_and_correct(probs, labels))
    groups = [("right", value[right], style.BLUE), ("wrong", value[~right], style.ORANGE)]
    groups = [group for group in groups if len(group[1])]
    figure, axes = style.subplots(style.SIZE, len(groups), sharex=True, sharey=True, squeeze=False)
    for ax, (name, values, colour) in zip(axes[:, 0], groups, strict=True):
        share = np.full(len(values), 1 / len(values))
        ax.hist(values, bins=np.linspace(0, 1, 21), weights=share, color=colour)
        words = f"{name} answer" + ("" if len(values) == 1 else "s")
        ax.set_title(f"{len(values)} {words}", **style.HEADING)
        ax.set_ylabel(f"share of the {name} ones")
        style.percent(ax.yaxis)
    ax.set(xlim=(0, 1), xlabel="confidence")
    style.percent(ax.xaxis)
    return figure
