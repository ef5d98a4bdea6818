"""Runs under distribution shift: a metric by corruption and severity."""

import math
from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from probattn.experiments.evaluation.metric_display import DISPLAY, arrow, unit
from probattn.experiments.plots import style

Runs = Mapping[str, Mapping[str, Mapping[int, Mapping[str, float]]]]
"""Label → corruption → severity → metrics, unscaled."""


def boxes(runs: Runs, *, metric: str) -> Figure | None:
    """Draw a box of every run over the severities of each corruption (KEP-SVGP paper, Fig. 2); None without a value.

    Boxes are quartiles, whiskers reach to the smallest and the largest value; a line is the run's mean. Values that are
    not finite are left out.
    """
    display = DISPLAY[metric]
    names = list(dict.fromkeys(name for corruptions in runs.values() for name in corruptions))
    values = {
        label: {
            name: [display.scale * row[metric] for row in levels.values() if math.isfinite(row.get(metric, math.nan))]
            for name, levels in corruptions.items()
        }
        for label, corruptions in runs.items()
    }
    values = {label: groups for label, groups in values.items() if any(groups.values())}
    if not values:
        return None
    figure, (ax,) = style.panels(width=style.WIDTH, height=2.6)
    width = 0.8 / len(values)
    for number, groups in enumerate(values.values()):
        colour = style.LINES[number % len(style.LINES)]
        places = [names.index(name) + width * (number + 0.5) - 0.4 for name, group in groups.items() if group]
        line = {"color": style.INK, "linewidth": 0.8}
        drawn = [group for group in groups.values() if group]
        ax.boxplot(
            drawn, positions=places, widths=0.8 * width, whis=(0, 100), showcaps=False, showfliers=False,
            patch_artist=True, manage_ticks=False, medianprops=line, whiskerprops=line,
            boxprops={"facecolor": colour, "edgecolor": colour, "linewidth": 1},
        )  # fmt: skip
        total = [value for group in drawn for value in group]
        ax.axhline(sum(total) / len(total), color=colour, lw=0.8, ls="--", zorder=0)
    ax.set_xticks(range(len(names)), [style.wrapped(name.replace("_", " "), 12) for name in names])
    ax.tick_params(axis="x", rotation=45 if len(names) > 8 else 0, length=0)
    ax.set_xlim(-0.5, len(names) - 0.5)
    ax.set_ylabel(f"{display.title} {unit(display.scale)} {arrow(display)}")
    severities = sorted({level for corruptions in runs.values() for levels in corruptions.values() for level in levels})
    ax.set_title(f"severities {', '.join(map(str, severities))}; dashed: the mean of all", **style.TITLE)
    colours = [style.LINES[number % len(style.LINES)] for number in range(len(values))]
    handles = [
        Patch(label=style.wrapped(label, 40), color=colour) for label, colour in zip(values, colours, strict=True)
    ]
    style.legend(figure, handles, columns=4)
    return figure
