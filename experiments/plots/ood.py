"""Confidence on foreign images beside that of right and wrong answers (KEP-SVGP paper, Fig. 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from probattn.experiments.plots.model_diagnostics import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PERCENT,
    PURPLE,
    SMALL,
    TEXT,
    grid,
    numbers,
    plain,
    short,
)
from probattn.inference.metrics import ood
from probattn.inference.prediction.result import Prediction

BINS = np.linspace(0, 1, 21)
HEIGHT = 2.3  # inches a panel


def confidence(inside: Prediction, outside: Mapping[str, Prediction]) -> Figure | None:
    """Histograms of the confidence of right, wrong and foreign inputs, each a share of its own; a panel per set.

    The title of a panel has the AUROC of telling known from foreign inputs by their confidence.

    Args:
        inside: of the test set, with its labels.
        outside: of each set of foreign inputs, by its name; None is drawn where there is none.
    """
    if not outside:
        return None
    figure, axes = grid(len(outside), height=HEIGHT)
    for ax, (name, foreign) in zip(axes, outside.items(), strict=True):
        _panel(ax, inside, foreign, title=short(name, limit=20))
    _finish(figure, axes, bottom=axes[-3:], left=axes[::3])
    return figure


def confidences(runs: Mapping[str, tuple[Prediction, Mapping[str, Prediction]]]) -> Figure | None:
    """The panels of :func:`confidence` for several runs, side by side; a row per set that all of them have.

    Args:
        runs: the arguments of :func:`confidence` of each run, by its name.
    """
    first = next(iter(runs.values()), (None, {}))[1]
    names = [name for name in first if all(name in outside for _, outside in runs.values())]
    if not names:
        return None
    size = (0.4 + 3.1 * len(runs), (HEIGHT + 0.2) * len(names) + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(names), len(runs), squeeze=False)
    for row, name in zip(axes, names, strict=True):
        for ax, (run, (inside, outside)) in zip(row, runs.items(), strict=True):
            plain(ax)
            _panel(ax, inside, outside[name], title=f"{short(run)}\n{short(name, limit=20)}")
    _finish(figure, axes.ravel(), bottom=axes[-1], left=axes[:, 0])
    return figure


def _panel(ax: Axes, inside: Prediction, foreign: Prediction, *, title: str) -> None:
    right = numbers(inside.probs.argmax(-1) == inside.labels) > 0
    value, strange = (numbers(each.probs.amax(-1)).clip(max=1) for each in (inside, foreign))  # rounded to above 1
    groups = {
        "foreign": (strange, {"histtype": "stepfilled", "color": PURPLE, "alpha": 0.45}),
        "right": (value[right], {"histtype": "step", "color": BLUE, "lw": 1.6}),
        "wrong": (value[~right], {"histtype": "step", "color": ORANGE, "lw": 1.6, "ls": "--"}),
    }
    for values, look in groups.values():
        if len(values):
            ax.hist(values, bins=BINS, weights=np.full(len(values), 1 / len(values)), **look)
    auroc = ood.detection_metrics(ood.max_softmax(inside), ood.max_softmax(foreign))["auroc"]
    counts = ", ".join(f"{len(values):,} {name}" for name, (values, _) in groups.items())
    ax.set_title(f"{title}: AUROC {100 * auroc:.1f}\u00a0%\n{counts}", fontsize=TEXT, loc="left", color=INK)


def _finish(figure: Figure, axes: Sequence[Axes], *, bottom: Sequence[Axes], left: Sequence[Axes]) -> None:
    """One scale for all panels, words at the edges of the figure, and a legend."""
    top = max(ax.get_ylim()[1] for ax in axes)
    for ax in axes:
        ax.set(xlim=(0, 1), ylim=(0, top), xticks=np.linspace(0, 1, 5))
        ax.xaxis.set_major_formatter(PERCENT)
        ax.yaxis.set_major_formatter(PERCENT)
    for ax in bottom:
        ax.set_xlabel("confidence", fontsize=SMALL, color=GREY, labelpad=1)
    for ax in left:
        ax.set_ylabel("share of each group", fontsize=SMALL, color=GREY)
    handles = [
        Line2D([], [], color=BLUE, lw=1.6, label="right answers"),
        Line2D([], [], color=ORANGE, lw=1.6, ls="--", label="wrong answers"),
        Patch(color=PURPLE, alpha=0.45, lw=0, label="foreign inputs"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=SMALL)
