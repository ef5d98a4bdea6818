"""Checks of a posterior: guides against NUTS, ranks of simulation-based calibration (SBC), importance ratios."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy.stats import binom

from probattn.experiments.plots import style
from probattn.experiments.studies.compare_posteriors import PosteriorComparison, SiteComparison
from probattn.inference.diagnostics.psis import KHAT_THRESHOLD, PSIS
from probattn.inference.diagnostics.sbc import SBC

PANELS = 12
"""Largest number of rank histograms."""
MARKERS = "os^Dv<>P"
COVERAGE = 0.99


def against_nuts(comparison: PosteriorComparison) -> Figure:
    """Draw each scalar's mean and standard deviation under each guide against NUTS, a row of panels per site.

    A correct guide lies on the diagonal. The first row also has each guide's total-variation distance to the predictive
    probabilities of NUTS, if there are any.
    """
    sites = list(dict.fromkeys(each.site for each in comparison.sites))
    guides = list(comparison.predictive)
    distances = [comparison.predictive[guide] for guide in guides]
    columns = 3 if any(map(math.isfinite, distances)) else 2
    figure, axes = style.subplots((3.2 * columns, 2.9 * len(sites) + 0.35), len(sites), columns, squeeze=False)
    looks = {guide: (style.colour(k), MARKERS[k % len(MARKERS)]) for k, guide in enumerate(guides)}
    for row, site in zip(axes, sites, strict=True):
        parts = [each for each in comparison.sites if each.site == site]
        for ax, moment in zip(row, ("mean", "std"), strict=False):
            _scatter(ax, parts, moment, looks)
            ax.set_title(f"{moment} of {style.wrapped(site)}", **style.TITLE)
    for ax in axes[1:, 2:].flat:
        ax.remove()
    if columns == 3:
        _distances(axes[0, 2], guides, distances, looks)
    handles = [
        Line2D([], [], ls="", marker=marker, ms=5, mfc="none", mec=colour, mew=1, label=style.wrapped(guide))
        for guide, (colour, marker) in looks.items()
    ]
    style.legend(figure, most=5, handles=handles)
    return figure


def rank_histograms(sbc: SBC) -> Figure:
    """Draw histograms of SBC ranks, a panel per scalar, the smallest p-values first and twelve at most.

    The band holds a bin's count with 99 % probability if ranks are uniform. A U shape means posteriors that are too
    narrow, a hump too wide, a slope biased.
    """
    counts, expected = (style.to_numpy(part) for part in sbc.counts())
    p_values = style.to_numpy(sbc.p_values())
    worst = np.argsort(p_values)[:PANELS]
    figure, axes = style.panel_grid(len(worst), height=1.7)
    edges = np.concatenate([[0], expected.cumsum() / expected.sum()])
    low, high = binom.interval(COVERAGE, len(sbc.ranks), expected / expected.sum())
    top = 1.08 * max(counts[worst].max(), high.max())
    for place, (ax, scalar) in enumerate(zip(axes, worst, strict=True)):
        ax.stairs(high, edges, baseline=low, fill=True, color=style.PALE)
        ax.stairs(counts[scalar], edges, color=style.BLUE, lw=1.4)
        ax.stairs(expected, edges, color=style.INK, lw=0.8, ls="--", baseline=None)
        ax.set(xlim=(0, 1), ylim=(0, top))
        ax.xaxis.set_major_formatter(style.PLAIN)
        ax.yaxis.set_major_locator(MaxNLocator(3, integer=True, steps=style.ROUND))
        name = style.wrapped(sbc.names[scalar])
        ax.set_title(f"{name}: p = {p_values[scalar]:.2g}", **style.TITLE)
        if place >= len(worst) - min(3, len(worst)):
            ax.set_xlabel("rank of the truth / number of draws")
    scope = f"{len(worst)} of {len(sbc.names)} scalars" if len(worst) < len(sbc.names) else "all scalars"
    band = f"band: {100 * COVERAGE:g} % of uniform ranks"
    together = f"all together p = {sbc.p_value():.2g}"
    figure.suptitle(f"{len(sbc.ranks)} simulations, {scope}; {band}; {together}", fontsize=style.TEXT, color=style.GREY)
    return figure


def importance_weights(psis: PSIS) -> Figure:
    """Draw the importance ratios in descending order, raw and smoothed, and their cumulative share.

    Left: 0 is the mean ratio, that of all draws if the guide is the posterior; the smallest twentieth is cut off.
    Right: equal shares are dashed.
    """
    raw, smoothed = (np.sort(style.to_numpy(part))[::-1] for part in (psis.log_weights, psis.smoothed))
    count = len(raw)
    place = np.arange(1, count + 1)
    figure, (left, right) = style.subplots((7.4, 3.1), 1, 2)
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xlabel("draws, largest ratio first", labelpad=1)
    raw = raw - np.logaddexp.reduce(raw) + math.log(count)
    left.plot(place, raw, color=style.BLUE, lw=0, marker="o", ms=2.5, label="ratio")
    left.plot(place, smoothed + math.log(count), color=style.ORANGE, lw=1.4, label="smoothed")
    left.axhline(0, color=style.INK, lw=0.8, ls="--")
    left.set_ylim(bottom=np.quantile(raw, 0.05) - 1)
    left.legend(frameon=False, fontsize=style.SMALL, labelcolor=style.INK)
    left.set_title("log ratio over the mean (nats)", **style.TITLE)
    right.plot(place, np.exp(smoothed).cumsum(), color=style.ORANGE, lw=1.6)
    right.plot(place, place / count, color=style.INK, lw=0.8, ls="--")
    right.set_ylim(0, 1.02)
    style.percent(right.yaxis)
    right.set_title("share of the sum of ratios", **style.TITLE)
    figure.suptitle(
        f"k̂ = {psis.khat:.2f} (good below {KHAT_THRESHOLD}); {psis.ess:.0f} effective of {count} draws",
        fontsize=style.TEXT,
        color=style.INK if psis.khat < KHAT_THRESHOLD else style.ORANGE,
    )
    return figure


def _scatter(ax: Axes, parts: list[SiteComparison], moment: str, looks: dict[str, tuple[str, str]]) -> None:
    coordinates = []
    for part in parts:
        at = style.to_numpy(getattr(part, f"reference_{moment}")).ravel()
        values = style.to_numpy(getattr(part, moment)).ravel()
        colour, marker = looks[part.guide]
        ax.plot(at, values, ls="", marker=marker, ms=4, mfc="none", mec=colour, mew=1)
        coordinates += [at, values]
    low, high = np.concatenate(coordinates).min(), np.concatenate(coordinates).max()
    margin = 0.06 * (high - low) or 1.0
    ends = (low - margin, high + margin)
    ax.plot(ends, ends, color=style.PALE, lw=1, zorder=0)
    ax.set(xlim=ends, ylim=ends, ylabel="guide", aspect="equal")
    ax.set_xlabel("NUTS", labelpad=1)
    for axis in (ax.xaxis, ax.yaxis):
        style.set_ticks(axis, 4)


def _distances(ax: Axes, guides: list[str], distances: list[float], looks: dict[str, tuple[str, str]]) -> None:
    rows = np.arange(len(guides))
    bars = ax.barh(rows, np.nan_to_num(distances), height=0.6, color=[looks[guide][0] for guide in guides])
    ax.bar_label(bars, [f"{each:.2g}" for each in distances], padding=3, fontsize=style.SMALL, color=style.INK)
    ax.set_yticks(rows, [style.wrapped(guide, 16) for guide in guides], fontsize=style.SMALL)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.3 * max(map(float, np.nan_to_num(distances))) or 1.0)
    style.set_ticks(ax.xaxis, 3)
    ax.set_title("predictive: total variation to NUTS ↓", **style.TITLE)
