"""Predictive checks: statistics of the data against those of replicated data."""

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from probattn.experiments.plots import style
from probattn.inference.diagnostics.predictive_check import PredictiveCheck

FEW = 40
"""Largest number of different values that have one bar each."""


def observed_and_replicated(check: PredictiveCheck) -> Figure:
    """Draw the replicates' histogram and the data's value of each statistic, with P(replicate ≥ data).

    Vectors have an interval from 5 to 95 % of the replicates for each entry.
    """
    figure, axes = style.panel_grid(len(check.observed), height=2.2)
    handles = {}
    for ax, (name, observed) in zip(axes, check.observed.items(), strict=True):
        replicated = check.replicated[name]
        p = check.p_values[name]
        if observed.dim():
            _intervals(ax, observed, replicated)
            note = f"smallest of {len(observed)} two-sided p: {2 * torch.minimum(p, 1 - p).min():.3f}"
        else:
            _histogram(ax, observed, replicated)
            note = f"P(replicated ≥ data) = {p:.3f}"
        ax.set_title(f"{style.wrapped(name.replace('_', ' '))}\n{note}", **style.TITLE)
        handles |= {label: handle for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    style.legend(figure, most=4, handles=list(handles.values()))
    return figure


def _histogram(ax: Axes, observed: Tensor, replicated: Tensor) -> None:
    values = style.to_numpy(replicated)
    different, counts = np.unique(values, return_counts=True)
    if len(different) <= FEW:  # counts or shares of few labels, whose spacing differs from that of bins
        width = 0.8 * np.diff(different).min() if len(different) > 1 else 0.8
        ax.bar(different, counts, width=width, color=style.SKY, label="replicated")
    else:
        ax.hist(values, bins="auto", color=style.SKY, label="replicated")
    ax.axvline(float(observed), color=style.ORANGE, lw=2, label="data")
    ax.set_ylabel("replicates")
    style.set_ticks(ax.xaxis, 5)
    style.set_ticks(ax.yaxis, 4, integer=True)


def _intervals(ax: Axes, observed: Tensor, replicated: Tensor) -> None:
    values, at = style.to_numpy(replicated), np.arange(len(observed))
    low, high = np.quantile(values, [0.05, 0.95], axis=0)
    ax.vlines(at, low, high, color=style.SKY, lw=max(1.0, min(6.0, 120 / len(at))), label="replicated, 5 to 95 %")
    ax.plot(at, np.median(values, axis=0), color=style.BLUE, ls="", marker="_", ms=6, label="their median")
    size = 4 if len(at) <= 20 else 2
    ax.plot(at, style.to_numpy(observed), color=style.ORANGE, ls="", marker="o", ms=size, label="data")
    ax.set_xlim(-0.7, len(at) - 0.3)
    style.set_ticks(ax.xaxis, 10, integer=True)
    style.set_ticks(ax.yaxis, 4)
