"""Calibration and selective prediction: reliability diagram, risk–coverage curve, histograms of the confidence.

``probs`` is ``(n, classes)`` and ``labels`` ``(n,)``; the confidence is the largest probability, the answer its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from probattn.experiments.evaluation.metric_display import format_value, unit
from probattn.experiments.plots.style import (
    BLUE,
    GREY,
    HEADING,
    INK,
    LABEL,
    LINES,
    ORANGE,
    PERCENT,
    SIZE,
    SKY,
    SMALL,
    set_ticks,
    shorten,
    single_panel,
    style_axes,
    to_numpy,
)
from probattn.inference import metrics

BINS = 15


@dataclass(frozen=True)
class Bins:
    """Equal-width bins of confidence; accuracy and mean confidence of empty bins are NaN."""

    count: np.ndarray
    accuracy: np.ndarray
    confidence: np.ndarray

    @property
    def ece(self) -> float:
        """Σ count/n · |accuracy − confidence|."""
        gap = np.abs(np.nan_to_num(self.accuracy - self.confidence))
        return float((self.count * gap).sum() / self.count.sum())


def bin_by_confidence(probs: Tensor, labels: Tensor, count: int = BINS) -> Bins:
    """Sort the answers into ``count`` bins [a, b) of confidence; the last one includes 1."""
    confidence, right = _answers(probs, labels)
    at = np.digitize(confidence, np.linspace(0, 1, count + 1)[1:-1])
    total = np.bincount(at, minlength=count)
    known = np.where(total > 0, total, np.nan)
    return Bins(
        total,
        np.bincount(at, weights=right, minlength=count) / known,
        np.bincount(at, weights=confidence, minlength=count) / known,
    )


def reliability(probs: Tensor, labels: Tensor) -> Figure | None:
    """Draw accuracy against confidence in 15 bins, the gap to the mean confidence hatched, and the counts below."""
    if not len(labels):
        return None
    bins = bin_by_confidence(probs, labels)
    full = bins.count > 0
    width = 1 / BINS
    middle = (np.arange(BINS) + 0.5) * width
    figure = Figure(figsize=SIZE, layout="constrained")
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    style_axes(top)
    style_axes(below)
    bar = {"width": 0.94 * width}
    top.bar(middle[full], bins.accuracy[full], color=SKY, label="accuracy", **bar)
    gap = (bins.confidence - bins.accuracy)[full]
    look = {"facecolor": "none", "edgecolor": ORANGE, "hatch": "////", "lw": 1}
    top.bar(middle[full], gap, bottom=bins.accuracy[full], label="gap to confidence", **look, **bar)
    top.plot([0, 1], [0, 1], color=INK, lw=1, ls="--", label="perfect")
    top.set_ylim(0, 1.02)
    top.set_ylabel("accuracy", **LABEL)
    names = {"ncols": 3, "loc": "outside lower center", "columnspacing": 1.2, "handlelength": 1.5}
    figure.legend(fontsize=SMALL, frameon=False, **names)
    scale = metrics.DISPLAY["ece"].scale
    top.set_title(f"Reliability: ECE {format_value(bins.ece, scale)} {unit(scale)}", **HEADING)
    below.bar(middle[full], bins.count[full], color=GREY, **bar)
    below.set_ylabel("answers", **LABEL)
    below.set_xlabel("confidence", **LABEL)
    set_ticks(below.yaxis, 3, integer=True)
    below.set_xlim(0, 1)
    for axis in (top.xaxis, top.yaxis):
        axis.set_major_formatter(PERCENT)
    return figure


def risk_coverage(runs: Mapping[str, tuple[Tensor, Tensor]]) -> Figure | None:
    """Draw the error rate of the answers kept against the share kept, the most confident first; the best is dashed.

    Args:
        runs: name → probs and labels; names are displayed if there are several runs.
    """
    runs = {name: pair for name, pair in runs.items() if len(pair[1])}
    if not runs:
        return None
    figure, ax = single_panel(SIZE if len(runs) == 1 else (5.4, 3.8 + 0.17 * len(runs)))
    worst = 0.0
    for number, (name, (probs, labels)) in enumerate(runs.items()):
        coverage, risk = (to_numpy(part) for part in metrics.risk_coverage(probs, labels))
        colour = LINES[number % len(LINES)]
        label = shorten(name, limit=60) if len(runs) > 1 else "this network"
        dots = {"marker": "o", "ms": 3.5} if len(risk) <= 25 else {}
        ax.plot(coverage, risk, color=colour, lw=1.8, label=label, **dots)
        ideal = np.clip(1 - _answers(probs, labels)[1].mean() / coverage, 0, None)
        ax.plot(coverage, ideal, color=colour, lw=1, ls="--")
        worst = max(worst, risk[len(risk) // 20 :].max())  # the first few answers alone jump between 0 and 1
    ax.plot([], [], color=INK, lw=1, ls="--", label="best possible at this accuracy")
    ax.set_xlim(0, 1.01)  # so that the last point is whole
    ax.set_ylim(-0.02 * (worst or 0.1), 1.12 * worst or 0.1)
    ax.xaxis.set_major_formatter(PERCENT)
    ax.yaxis.set_major_formatter(PERCENT)
    ax.set_xlabel("coverage: share of answers kept, the most confident first", **LABEL)
    ax.set_ylabel("risk: share of these that are wrong", **LABEL)
    ax.set_title("Risk–coverage", **HEADING)
    columns = 2 if len(runs) == 1 else 1
    figure.legend(fontsize=SMALL, frameon=False, loc="outside lower center", ncols=columns)
    return figure


def confidence(probs: Tensor, labels: Tensor) -> Figure | None:
    """Draw histograms of the confidence of right answers (above) and wrong answers (below), each normalised."""
    if not len(labels):
        return None
    value, right = _answers(probs, labels)
    groups = [("right", value[right], BLUE), ("wrong", value[~right], ORANGE)]
    groups = [group for group in groups if len(group[1])]
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots(len(groups), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for ax, (name, values, colour) in zip(axes, groups, strict=True):
        style_axes(ax)
        share = np.full(len(values), 1 / len(values))
        ax.hist(values, bins=np.linspace(0, 1, 21), weights=share, color=colour)
        words = f"{name} answer" + ("" if len(values) == 1 else "s")
        ax.set_title(f"{len(values)} {words}", **HEADING)
        ax.set_ylabel(f"share of the {name} ones", **LABEL)
        ax.yaxis.set_major_formatter(PERCENT)
    axes[-1].set_xlim(0, 1)
    axes[-1].xaxis.set_major_formatter(PERCENT)
    axes[-1].set_xlabel("confidence", **LABEL)
    return figure


def _answers(probs: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the confidence, at most 1, of each answer, and True for the right ones."""
    value, answer = probs.max(-1)
    return np.minimum(to_numpy(value), 1.0), (answer == labels).cpu().numpy()
