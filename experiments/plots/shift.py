"""Runs under distribution shift: a metric by corruption and severity."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from probattn.experiments.evaluation.metric_display import DISPLAY, heading
from probattn.experiments.plots import style

Runs = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Label → ``CORRUPTION/SEVERITY`` → metrics, unscaled."""


def boxes(runs: Runs, *, metric: str) -> Figure | None:
    """Draw a box of every run over the severities of each corruption (KEP-SVGP paper, Fig. 2); None without a value.

    Boxes are quartiles, whiskers reach to the smallest and the largest value; a line is the run's mean. Values that are
    not finite are left out.
    """
    display = DISPLAY[metric]
    rows = [
        (label, *name.split("/"), display.scale * row.get(metric, np.nan))
        for label, shifted in runs.items()
        for name, row in shifted.items()
    ]
    frame = pd.DataFrame(rows, columns=["run", "corruption", "severity", "value"])
    frame = frame[np.isfinite(frame["value"].astype(float))]
    if frame.empty:
        return None
    names, labels = list(frame["corruption"].unique()), list(frame["run"].unique())
    figure, (ax,) = style.panels(width=style.WIDTH, height=2.6)
    width = 0.8 / len(labels)
    for number, label in enumerate(labels):
        colour, part = style.line_colour(number), frame[frame["run"] == label]
        values = part.groupby("corruption", sort=False)["value"].apply(list)
        places = [names.index(name) + width * (number + 0.5) - 0.4 for name in values.index]
        ink, fill = {"color": style.INK, "lw": 0.8}, {"facecolor": colour, "edgecolor": colour}
        look = {"showcaps": False, "medianprops": ink, "whiskerprops": ink, "boxprops": fill, "patch_artist": True}
        ax.boxplot(list(values), positions=places, widths=0.8 * width, whis=(0, 100), manage_ticks=False, **look)
        ax.axhline(part["value"].mean(), color=colour, lw=0.8, ls="--", zorder=0)
        ax.plot([], [], color=colour, lw=5, label=style.wrapped(label, 40))
    ax.set_xticks(range(len(names)), [style.wrapped(name.replace("_", " "), 12) for name in names])
    ax.tick_params(axis="x", rotation=45 if len(names) > 8 else 0, length=0)
    ax.set(xlim=(-0.5, len(names) - 0.5), ylabel=heading(display))
    severities = ", ".join(sorted(frame["severity"].unique()))
    ax.set_title(f"severities {severities}; dashed: the mean of all", **style.TITLE)
    style.legend(figure, columns=4)
    return figure
