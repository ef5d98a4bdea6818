"""Decisions under uncertainty: risk and coverage of an abstention threshold, sizes of conformal sets."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from probattn.experiments.plots import style
from probattn.inference import metrics
from probattn.inference.decisions.abstention import RiskThreshold

DODGE = 0.004
"""Offset, in coverage, that keeps the marks of validation and test data apart."""


def abstention(threshold: RiskThreshold, valid: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Figure:
    """Draw risk against coverage on validation and test data, the target, and the threshold on both curves.

    A dot is the threshold. Its bar reaches up to the bound on validation data, and is the exact interval on test data.
    If nothing is accepted, the title says so.

    Args:
        threshold: chosen on ``valid``.
        valid, test: probs ``(n, classes)`` and labels ``(n,)``.
    """
    figure, ax = style.subplots((5.4, 4.1))
    top = 1.5 * threshold.target
    parts = (("validation", style.BLUE, -DODGE, valid), ("test", style.ORANGE, DODGE, test))
    for name, colour, shift, (probs, labels) in parts:
        coverage, risk = (style.to_numpy(part) for part in metrics.risk_coverage(probs, labels))
        ax.plot(coverage, risk, color=colour, lw=1.6, label=name)
        top = max(top, 1.2 * risk[-1])
        check = threshold.evaluate(probs, labels)
        if check["accepted"]:
            low, high = (check["low"], check["high"]) if name == "test" else (check["risk"], threshold.bound)
            at = check["coverage"] + shift
            ax.plot([at, at], [low, high], color=colour, lw=1.6, marker="_", ms=7, zorder=3)
            ax.plot([at], [check["risk"]], color=colour, marker="o", ms=6, mec=style.PAPER, zorder=4, clip_on=False)
            top = max(top, 1.1 * high)
    ax.axhline(threshold.target, color=style.INK, lw=1, ls="--", label=f"target, {100 * threshold.target:g} %")
    if not math.isinf(threshold.confidence):
        label = "at the threshold, with its bound and its exact interval"
        ax.plot([], [], color=style.GREY, marker="o", lw=1.6, label=label)
    ax.set(xlim=(0, 1.02), xlabel="coverage: share of the answers kept, the most confident first")
    ax.set(ylim=(0, min(1.0, top)), ylabel="risk: error rate among them")
    for axis in (ax.xaxis, ax.yaxis):
        style.set_ticks(axis, 5, style.PERCENT)
    title = f"answers with confidence ≥ {threshold.confidence:.4g}"
    if math.isinf(threshold.confidence):
        title = "abstains from everything: no threshold keeps the target"
    ax.set_title(title, **style.HEADING)
    style.legend(figure, most=2)
    return figure


def set_sizes(methods: Mapping[str, tuple[Tensor, Tensor]], *, alpha: float) -> Figure:
    """Draw the distribution of the sizes of conformal sets, with coverage and mean size; a bar per method.

    Args:
        methods: name → sets, bool ``(n, classes)``, and labels ``(n,)``.
        alpha: allowed probability of missing the class.
    """
    figure, ax = style.subplots((style.SIZE[0] + 1.7, style.SIZE[1] - 0.4))
    width = 0.8 / len(methods)
    largest = 1
    for number, (name, (sets, labels)) in enumerate(methods.items()):
        kept, at = sets.cpu().numpy(), labels.cpu().numpy()
        size = kept.sum(axis=1)
        largest = max(largest, size.max())
        share = np.bincount(size) / len(size)
        covered = kept[np.arange(len(at)), at].mean()
        label = f"{style.wrapped(name)}: {100 * covered:.1f} % covered, mean size {size.mean():.2f}"
        place = np.arange(len(share)) + (number - (len(methods) - 1) / 2) * width
        ax.bar(place, share, width=0.92 * width, color=style.colour(number), label=label)
    ax.set(xlim=(-0.6, largest + 0.6), xlabel="classes in the set", ylabel="share of the examples")
    ax.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    style.percent(ax.yaxis)
    ax.set_title(f"Sets that promise {100 * (1 - alpha):g} %", **style.HEADING)
    style.legend(figure, most=1)
    return figure
