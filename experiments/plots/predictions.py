"""Figures of what a network answered: its calibration, its risk, and the examples that it finds hard.

Pure functions, as in `figures`. Throughout, `probs` is (n, classes), `labels` (n,); the confidence is the
largest probability, the answer its class.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from probattn.experiments.plots.model_diagnostics import (
    BLUE,
    COLUMNS,
    GREY,
    HEAD,
    INK,
    LINES,
    ORANGE,
    PALE,
    PERCENT,
    PLAIN,
    ROUND,
    SIZE,
    SKY,
    SMALL,
    TEXT,
    numbers,
    plain,
    short,
)
from probattn.inference import metrics

BINS = 15


@dataclass(frozen=True)
class Bins:
    """Equal-width bins of confidence; accuracy and mean confidence are NaN where count is 0."""

    count: np.ndarray
    accuracy: np.ndarray
    confidence: np.ndarray

    @property
    def ece(self) -> float:
        """Σ count/n · |accuracy − confidence|."""
        gap = np.abs(np.nan_to_num(self.accuracy - self.confidence))
        return float((self.count * gap).sum() / self.count.sum())


def bin_by_confidence(probs: Tensor, labels: Tensor, count: int = BINS) -> Bins:
    """Sort the answers into `count` bins [a, b) of confidence; the last one includes 1."""
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
    """Accuracy against confidence in 15 bins, the gap to the mean confidence hatched, the counts below."""
    if not len(labels):
        return None
    bins = bin_by_confidence(probs, labels)
    full = bins.count > 0
    width = 1 / BINS
    middle = (np.arange(BINS) + 0.5) * width
    figure = Figure(figsize=SIZE, layout="constrained")
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    plain(top)
    plain(below)
    bar = {"width": 0.94 * width}
    top.bar(middle[full], bins.accuracy[full], color=SKY, label="accuracy", **bar)
    gap = (bins.confidence - bins.accuracy)[full]
    look = {"facecolor": "none", "edgecolor": ORANGE, "hatch": "////", "lw": 1}
    top.bar(middle[full], gap, bottom=bins.accuracy[full], label="gap to confidence", **look, **bar)
    top.plot([0, 1], [0, 1], color=INK, lw=1, ls="--", label="perfect")
    top.set_ylim(0, 1.02)
    top.set_ylabel("accuracy", fontsize=SMALL, color=GREY)
    names = {"ncols": 3, "loc": "outside lower center", "columnspacing": 1.2, "handlelength": 1.5}
    figure.legend(fontsize=SMALL, frameon=False, **names)
    scale = metrics.DISPLAY["ece"].scale
    unit = {100: " %", 1: ""}.get(scale, f" (×{scale:g})")
    top.set_title(f"Reliability: ECE {scale * bins.ece:.2f}{unit}", fontsize=HEAD, loc="left", color=INK)
    below.bar(middle[full], bins.count[full], color=GREY, **bar)
    below.set_ylabel("answers", fontsize=SMALL, color=GREY)
    below.set_xlabel("confidence", fontsize=SMALL, color=GREY)
    below.yaxis.set_major_locator(MaxNLocator(3, integer=True, steps=ROUND))
    below.yaxis.set_major_formatter(PLAIN)
    below.set_xlim(0, 1)
    for axis in (top.xaxis, top.yaxis):
        axis.set_major_formatter(PERCENT)
    return figure


def risk_coverage(runs: Mapping[str, tuple[Tensor, Tensor]]) -> Figure | None:
    """Error rate among the answers kept against the share kept, the most confident first; dashed the ideal.

    `runs` maps a run's name to its probs and labels; names are drawn only when there are several.
    """
    runs = {name: pair for name, pair in runs.items() if len(pair[1])}
    if not runs:
        return None
    figure = Figure(figsize=SIZE if len(runs) == 1 else (5.4, 3.8 + 0.17 * len(runs)), layout="constrained")
    ax = figure.subplots()
    plain(ax)
    worst = 0.0
    for number, (name, (probs, labels)) in enumerate(runs.items()):
        coverage, risk = (numbers(part) for part in metrics.risk_coverage(probs, labels))
        colour = LINES[number % len(LINES)]
        label = short(name, limit=60) if len(runs) > 1 else "this network"
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
    ax.set_xlabel("coverage: share of answers kept, the most confident first", fontsize=SMALL, color=GREY)
    ax.set_ylabel("risk: share of these that are wrong", fontsize=SMALL, color=GREY)
    ax.set_title("Risk–coverage", fontsize=HEAD, loc="left", color=INK)
    columns = 2 if len(runs) == 1 else 1
    figure.legend(fontsize=SMALL, frameon=False, loc="outside lower center", ncols=columns)
    return figure


def confidence(probs: Tensor, labels: Tensor) -> Figure | None:
    """Histograms of the confidence, of right answers above, of wrong ones below, each a share of its own."""
    if not len(labels):
        return None
    value, right = _answers(probs, labels)
    groups = [("right", value[right], BLUE), ("wrong", value[~right], ORANGE)]
    groups = [group for group in groups if len(group[1])]
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots(len(groups), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for ax, (name, values, colour) in zip(axes, groups, strict=True):
        plain(ax)
        share = np.full(len(values), 1 / len(values))
        ax.hist(values, bins=np.linspace(0, 1, 21), weights=share, color=colour)
        words = f"{name} answer" + ("" if len(values) == 1 else "s")
        ax.set_title(f"{len(values)} {words}", fontsize=HEAD, loc="left", color=INK)
        ax.set_ylabel(f"share of the {name} ones", fontsize=SMALL, color=GREY)
        ax.yaxis.set_major_formatter(PERCENT)
    axes[-1].set_xlim(0, 1)
    axes[-1].xaxis.set_major_formatter(PERCENT)
    axes[-1].set_xlabel("confidence", fontsize=SMALL, color=GREY)
    return figure


def most_uncertain(probs: Tensor, count: int = 12) -> list[int]:
    """Indices of the highest predictive entropy, highest first; ties in the order of the data."""
    entropy = torch.special.entr(probs.double()).sum(-1)
    return entropy.sort(descending=True, stable=True).indices[:count].tolist()


def most_confidently_wrong(probs: Tensor, labels: Tensor, count: int = 12) -> list[int]:
    """Indices of the wrong answers of highest confidence, highest first; ties in the order of the data."""
    value, answer = probs.max(-1)
    wrong = (answer != labels).nonzero()[:, 0]
    return wrong[value[wrong].sort(descending=True, stable=True).indices][:count].tolist()


def gallery(
    images: Tensor, probs: Tensor, labels: Tensor, classes: Sequence[str], indices: Sequence[int]
) -> Figure | None:
    """The images (uint8, (n, channels, H, W)) at `indices`, each with its predicted distribution.

    Blue is the true class, orange a wrong answer; of more than ten classes only the five likeliest are shown.
    """

    def show(ax: Axes, index: int) -> None:
        picture = images[index].cpu().numpy()
        if len(picture) == 3:
            ax.imshow(picture.transpose(1, 2, 0), interpolation="nearest")
        else:  # one channel is grey; of any other number only the first can be shown
            ax.imshow(picture[0], cmap="gray", vmin=0, vmax=255, interpolation="nearest")

    return _answered(show, probs, labels, classes, indices) if images.numel() else None


def excerpts(
    texts: Sequence[str], probs: Tensor, labels: Tensor, classes: Sequence[str], indices: Sequence[int]
) -> Figure | None:
    """The beginnings of the texts at `indices`, each with its predicted distribution, as in :func:`gallery`."""

    def show(ax: Axes, index: int) -> None:
        passage = textwrap.fill(textwrap.shorten(texts[index], 150, placeholder=" …"), 24, break_on_hyphens=False)
        ax.text(0, 0.5, passage.replace("$", r"\$"), fontsize=SMALL, color=INK, va="center", transform=ax.transAxes)

    return _answered(show, probs, labels, classes, indices) if texts else None


def _answered(
    show: Callable[[Axes, int], None],
    probs: Tensor,
    labels: Tensor,
    classes: Sequence[str],
    indices: Sequence[int],
) -> Figure | None:
    if not len(indices):
        return None
    columns = min(COLUMNS, len(indices))
    rows = -(-len(indices) // columns)
    figure = Figure(figsize=(3.2 * columns, 1.75 * rows), layout="constrained")
    cells = np.atleast_1d(figure.subfigures(rows, columns, squeeze=False).ravel())
    for cell, index in zip(cells, indices, strict=False):
        left, right = cell.subplots(1, 2, width_ratios=(1, 1.05))
        show(left, index)
        left.set_axis_off()
        row, true = numbers(probs[index]), int(labels[index])
        _bars(right, row, true, classes)
        names = (_name(classes, true), _name(classes, int(row.argmax())))
        cell.suptitle(f"true: {names[0]}, predicted: {names[1]}", fontsize=TEXT, color=INK)
    return figure


def _bars(ax: Axes, row: np.ndarray, true: int, classes: Sequence[str]) -> None:
    """Draw the probabilities of one answer."""
    shown = np.arange(len(row)) if len(row) <= 10 else np.argsort(-row, kind="stable")[:5]
    answer = int(row.argmax())
    colours = [BLUE if at == true else ORANGE if at == answer else PALE for at in shown]
    ax.barh(np.arange(len(shown)), row[shown], color=colours, height=0.8)
    ax.set_yticks(np.arange(len(shown)), [_name(classes, at) for at in shown])
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xticks([0, 1])
    ax.xaxis.set_major_formatter(PERCENT)
    plain(ax)
    ax.tick_params(labelsize=6.5 if len(shown) > 5 else SMALL)


def _answers(probs: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the confidence, at most 1, of each answer and whether it is right."""
    value, answer = probs.max(-1)
    return np.minimum(numbers(value), 1.0), (answer == labels).cpu().numpy()


def _name(classes: Sequence[str], at: int) -> str:
    return short(str(classes[at]), limit=14)
