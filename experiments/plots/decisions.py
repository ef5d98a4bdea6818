"""Acting on uncertainty: what abstaining buys at a threshold, and how large conformal sets are."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from probattn.experiments.plots.model_diagnostics import (
    BLUE,
    GREY,
    HEAD,
    INK,
    LINES,
    ORANGE,
    PERCENT,
    ROUND,
    SIZE,
    SMALL,
    numbers,
    plain,
    short,
)
from probattn.inference import metrics
from probattn.inference.decisions.abstention import Threshold

DODGE = 0.004
"""How far apart, in coverage, two marks stand that would lie on each other."""


def abstention(threshold: Threshold, valid: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Figure:
    """Risk against coverage on validation and test data, the target, and what the threshold does on both.

    A dot is the threshold: on validation data the bar reaches up to its bound, on test data it is the exact interval.
    Where nothing is accepted, the curves stand alone and the title says so. `valid` and `test` are probs (n, classes)
    and labels (n,).
    """
    figure = Figure(figsize=(5.4, 4.1), layout="constrained")
    ax = figure.subplots()
    plain(ax)
    top = 1.5 * threshold.target
    for name, colour, shift, (probs, labels) in (("validation", BLUE, -DODGE, valid), ("test", ORANGE, DODGE, test)):
        coverage, risk = (numbers(part) for part in metrics.risk_coverage(probs, labels))
        ax.plot(coverage, risk, color=colour, lw=1.6, label=name)
        top = max(top, 1.2 * risk[-1])
        seen = threshold.check(probs, labels)
        if seen["accepted"]:
            low, high = (seen["low"], seen["high"]) if name == "test" else (seen["risk"], threshold.bound)
            _mark(ax, seen["coverage"] + shift, seen["risk"], low, high, colour)
            top = max(top, 1.1 * high)
    ax.axhline(threshold.target, color=INK, lw=1, ls="--", label=f"target, {100 * threshold.target:g} %")
    if not math.isinf(threshold.confidence):
        ax.plot([], [], color=GREY, marker="o", lw=1.6, label="at the threshold, with its bound and its exact interval")
    ax.set_xlim(0, 1.02)
    ax.set_ylim(0, min(1.0, top))
    ax.set_xlabel("coverage: share of the answers kept, the most confident first", fontsize=SMALL, color=GREY)
    ax.set_ylabel("risk: error rate among them", fontsize=SMALL, color=GREY)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=ROUND))
        axis.set_major_formatter(PERCENT)
    title = f"answers with confidence ≥ {threshold.confidence:.4g}"
    if math.isinf(threshold.confidence):
        title = "abstains from everything: no threshold keeps the target"
    ax.set_title(title, fontsize=HEAD, loc="left", color=INK)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=SMALL)
    return figure


def set_sizes(methods: Mapping[str, tuple[Tensor, Tensor]], *, alpha: float) -> Figure:
    """How many classes the conformal sets hold, bars side by side for each method, with coverage and mean size.

    `methods` maps a name to sets, bool (n, classes), and labels (n,); `alpha` is what they were made with.
    """
    figure = Figure(figsize=(SIZE[0] + 1.7, SIZE[1] - 0.4 + 0.17 * len(methods)), layout="constrained")
    ax = figure.subplots()
    plain(ax)
    width = 0.8 / len(methods)
    largest = 1
    for number, (name, (sets, labels)) in enumerate(methods.items()):
        kept, at = sets.cpu().numpy(), labels.cpu().numpy()
        size = kept.sum(axis=1)
        largest = max(largest, size.max())
        share = np.bincount(size) / len(size)
        covered = kept[np.arange(len(at)), at].mean()
        words = f"{short(name)}: {100 * covered:.1f} % covered, mean size {size.mean():.2f}"
        place = np.arange(len(share)) + (number - (len(methods) - 1) / 2) * width
        ax.bar(place, share, width=0.92 * width, color=LINES[number % len(LINES)], label=words)
    ax.set_xlim(-0.6, largest + 0.6)
    ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    ax.yaxis.set_major_formatter(PERCENT)
    ax.set_xlabel("classes in the set", fontsize=SMALL, color=GREY)
    ax.set_ylabel("share of the examples", fontsize=SMALL, color=GREY)
    ax.set_title(f"Sets that promise {100 * (1 - alpha):g} %", fontsize=HEAD, loc="left", color=INK)
    figure.legend(loc="outside lower center", frameon=False, fontsize=SMALL)
    return figure


def _mark(ax: Axes, at: float, value: float, low: float, high: float, colour: str) -> None:
    ax.plot([at, at], [low, high], color=colour, lw=1.6, marker="_", ms=7, zorder=3)
    ax.plot([at], [value], color=colour, marker="o", ms=6, mec="white", zorder=4, clip_on=False)
