"""Checks of a posterior: guides against NUTS, and ranks of simulation-based calibration (SBC)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binom

from probattn.experiments.plots import style
from probattn.inference.diagnostics.sbc import SBC

if TYPE_CHECKING:
    from probattn.experiments.studies.compare_posteriors import PosteriorComparison

PANELS = 12
"""Largest number of rank histograms."""
COVERAGE = 0.99


def against_nuts(comparison: PosteriorComparison) -> Figure:
    """Draw each scalar's mean and standard deviation under each guide against NUTS, a row of panels per site.

    A correct guide lies on the diagonal.
    """
    sites = list(dict.fromkeys(part.site for part in comparison.sites))
    guides = list(comparison.predictive)
    figure, axes = style.panels(2 * len(sites), columns=2, width=3.2, height=2.9)
    for number, ax in enumerate(axes):
        site, moment = sites[number // 2], ("mean", "std")[number % 2]
        limits = []
        for part in (part for part in comparison.sites if part.site == site):
            look = {"mec": style.LINES[guides.index(part.guide) % len(style.LINES)], "mfc": "none"}
            pair = [getattr(part, name).double().flatten().numpy() for name in (f"reference_{moment}", moment)]
            ax.plot(*pair, ls="", marker="o", ms=4, label=style.wrapped(part.guide), **look)
            limits += [values for values in pair if len(values)]
        ends = [min(map(np.min, limits)), max(map(np.max, limits))]
        ax.plot(ends, ends, color=style.PALE, lw=1, zorder=0)
        ax.set(xlabel="NUTS", ylabel="guide")
        ax.set_title(f"{moment} of {style.wrapped(site)}", **style.TITLE)
    style.legend(figure, columns=5)
    return figure


def rank_histograms(sbc: SBC) -> Figure:
    """Draw histograms of SBC ranks, a panel per scalar, the smallest p-values first and twelve at most.

    The band holds a bin's count with 99 % probability if ranks are uniform. A U shape means posteriors that are too
    narrow, a hump too wide, a slope biased.
    """
    counts, expected = (part.double().numpy() for part in sbc.counts())
    p_values = sbc.p_values().double().numpy()
    worst = np.argsort(p_values)[:PANELS]
    shares = expected / expected.sum()
    edges = np.concatenate([[0], shares.cumsum()])
    low, high = binom.interval(COVERAGE, len(sbc.ranks), shares)
    figure, axes = style.panels(len(worst), width=style.WIDTH / 3, height=1.7, sharey=True)
    for ax, scalar in zip(axes, worst, strict=True):
        ax.stairs(high, edges, baseline=low, fill=True, color=style.PALE)
        ax.stairs(counts[scalar], edges, color=style.BLUE, lw=1.4)
        ax.set(xlim=(0, 1), xlabel="rank of the truth / number of draws")
        ax.set_title(f"{style.wrapped(sbc.names[scalar])}: p = {p_values[scalar]:.2g}", **style.TITLE)
    note = f"{len(sbc.ranks)} simulations; band: {100 * COVERAGE:g} % of uniform ranks; all p = {sbc.p_value():.2g}"
    figure.suptitle(note, **style.LABEL)
    return figure
