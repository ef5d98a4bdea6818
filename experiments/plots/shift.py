"""Runs under distribution shift: accuracy by corruption and severity."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from probattn.experiments.evaluation.metric_display import DISPLAY, heading
from probattn.experiments.plots import style

Runs = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Label → ``CORRUPTION/SEVERITY`` → metrics, unscaled."""
ACCURACY = DISPLAY["accuracy"]


def boxes(runs: Runs) -> Figure | None:
    """Draw a box of every run's accuracy over the severities of each corruption (KEP-SVGP paper, Fig. 2).

    Boxes are quartiles, whiskers reach to the smallest and the largest value; a line is the run's mean. None without
    runs on corrupted images.
    """
    rows = [
        (label, *name.split("/"), row["accuracy"]) for label, shifted in runs.items() for name, row in shifted.items()
    ]
    if not rows:
        return None
    frame = pd.DataFrame(rows, columns=["run", "corruption", "severity", "value"])
    frame["value"] *= ACCURACY.scale
    names, groups = list(frame["corruption"].unique()), frame.groupby("run", sort=False)
    figure, (ax,) = style.panels(width=style.WIDTH, height=2.6)
    width = 0.8 / len(groups)
    for number, (label, part) in enumerate(groups):
        colour = style.line_colour(number)
        values = part.groupby("corruption", sort=False)["value"].apply(list)
        places = [names.index(name) + width * (number + 0.5) - 0.4 for name in values.index]
        ink, fill = {"color": style.INK, "lw": 0.8}, {"facecolor": colour, "edgecolor": colour}
        look = {"showcaps": False, "medianprops": ink, "whiskerprops": ink, "boxprops": fill, "patch_artist": True}
        ax.boxplot(list(values), positions=places, widths=0.8 * width, whis=(0, 100), manage_ticks=False, **look)
        ax.axhline(part["value"].mean(), color=colour, lw=0.8, ls="--", zorder=0)
        ax.plot([], [], color=colour, lw=5, label=style.wrapped(label, 40))
    ax.set_xticks(range(len(names)), [style.wrapped(name.replace("_", " "), 12) for name in names])
    ax.tick_params(axis="x", rotation=45 if len(names) > 8 else 0, length=0)
    ax.set(xlim=(-0.5, len(names) - 0.5), ylabel=heading(ACCURACY))
    severities = ", ".join(sorted(frame["severity"].unique()))
    ax.set_title(f"severities {severities}; dashed: the mean of all", **style.TITLE)
    style.legend(figure, columns=4)
    return figure
