"""Runs under distribution shift: a metric by corruption, and by severity.

``runs[label][corruption][severity]`` maps keys of ``DISPLAY`` to values; values that are not finite are left
out. A diamond marks the best run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from probattn.experiments.data.images.corruptions import CATEGORIES, CORRUPTIONS
from probattn.experiments.evaluation.metric_display import DISPLAY, unit
from probattn.experiments.plots import style

Runs = Mapping[str, Mapping[str, Mapping[int, Mapping[str, float]]]]
Values = dict[str, dict[str, dict[int, float]]]
"""One scaled metric by label, corruption and severity, finite values only."""

BEST = {"marker": "D", "s": 30, "zorder": 4}
_DASHES, _HATCHES = ("-", "--", ":"), ("", "/////", ".....")  # if there are more runs than colours


def boxes(runs: Runs, *, metric: str) -> Figure | None:
    """Draw a box of every run over the severities of each corruption, a panel per category (KEP-SVGP paper, Fig. 2).

    Boxes are quartiles, whiskers reach to the smallest and the largest value. A single severity is drawn as bars.
    """
    values = _values(runs, metric)
    found = [name for name in CORRUPTIONS if any(name in of_run for of_run in values.values())]
    panels = [(category, [name for name in found if CORRUPTIONS[name].category == category]) for category in CATEGORIES]
    panels = [(category, names) for category, names in panels if names]
    if not panels:
        return None
    columns = 2 if len(values) <= 4 and len(panels) > 1 else 1
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(9.6, 2.1 * rows + 0.2), layout="constrained")
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(len(panels))]
    severities = _severities(*values.values())
    draw = _bars if len(severities) == 1 else _boxes
    logarithmic = draw is _boxes and _is_wide(values, metric)
    for place, (ax, (category, names)) in enumerate(zip(axes, panels, strict=True)):
        style.tidy(ax)
        ax.sharey(axes[0])
        ax.set_title(category, **style.TITLE, pad=12 if len(values) > 1 else 6)  # above the diamonds
        for number, of_run in enumerate(values.values()):
            groups = [(at, list(of_run[name].values())) for at, name in enumerate(names) if name in of_run]
            width = 0.8 / len(values)
            at = [middle + width * (number + 0.5) - 0.4 for middle, _ in groups]
            if groups:
                draw(ax, at, [part for _, part in groups], 0.85 * width, number)
        ax.set_xticks(range(len(names)), [name.replace("_", " ") for name in names])
        ax.set_xlim(-0.5, len(names) - 0.5)
        ax.tick_params(axis="x", length=0)
        _mark_best(ax, values, names, metric)
        _metric_axis(ax, metric if place % columns == 0 else "", logarithmic=logarithmic)
    levels = ", ".join(map(str, severities))
    note = f"bars: severity {levels}" if len(severities) == 1 else f"boxes: quartiles over severities {levels}"
    figure.suptitle(note, x=0.005, ha="left", **style.LABEL)
    handles = [Patch(label=style.wrapped(label, 40), **_fill(number)) for number, label in enumerate(values)]
    style.legend(figure, most=4, handles=[*handles, *_best_handle(values)])
    return figure


def by_severity(runs: Runs, *, metric: str) -> Figure | None:
    """Draw the mean over corruptions against severity, a line per run; thin lines are the range over corruptions."""
    values = _values(runs, metric)
    if not values:
        return None
    figure, ax = style.subplots((6.4, 3.6))
    for number, (label, of_run) in enumerate(values.items()):
        severities = _severities(of_run)
        groups = [[levels[at] for levels in of_run.values() if at in levels] for at in severities]
        # shifted sideways, so that no run hides another's range
        at = np.array(severities) + min(0.08, 0.7 / len(values)) * (number - (len(values) - 1) / 2)
        colour = style.colour(number)
        ax.vlines(at, list(map(min, groups)), list(map(max, groups)), color=colour, lw=1, alpha=0.5)
        look = {"color": colour, "ls": _DASHES[number // len(style.LINES) % 3], "lw": 1.4, "marker": "o", "ms": 3.5}
        ax.plot(at, [np.mean(group) for group in groups], label=style.wrapped(label, 40), **look)
        best = [place for place, level in zip(at, severities, strict=True) if label in _best(values, metric, level)]
        ax.scatter(best, np.interp(best, at, [np.mean(group) for group in groups]), color=colour, **BEST)
    ax.set_xticks(_severities(*values.values()))
    ax.set_xlabel("severity (dots: mean over corruptions; lines: smallest to largest)")
    _metric_axis(ax, metric, logarithmic=_is_wide(values, metric))
    handles = ax.get_legend_handles_labels()[0]
    style.legend(figure, most=3, handles=[*handles, *_best_handle(values)])
    return figure


def _values(runs: Runs, metric: str) -> Values:
    scale = DISPLAY[metric].scale
    values: Values = {}
    for label, corruptions in runs.items():
        for name, severities in corruptions.items():
            for severity, row in severities.items():
                if math.isfinite(row.get(metric, math.nan)):
                    values.setdefault(label, {}).setdefault(name, {})[severity] = scale * row[metric]
    return values


def _severities(*runs: dict[str, dict[int, float]]) -> list[int]:
    return sorted({severity for of_run in runs for levels in of_run.values() for severity in levels})


def _boxes(ax: Axes, at: list[float], groups: list[list[float]], width: float, number: int) -> None:
    fill = _fill(number)
    median = style.PAPER if fill["facecolor"] == style.INK else style.INK
    ax.boxplot(
        groups,
        positions=at,
        widths=width,
        whis=(0, 100),
        showcaps=False,
        showfliers=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={**fill, "linewidth": 0.5},
        medianprops={"color": median, "linewidth": 1.2},
        whiskerprops={"color": style.INK, "linewidth": 0.7},
    )


def _bars(ax: Axes, at: list[float], groups: list[list[float]], width: float, number: int) -> None:
    ax.bar(at, [value for (value,) in groups], width=width, linewidth=0, **_fill(number))


def _fill(number: int) -> dict[str, str]:
    """Return the colour of a run, hatched once the colours are used up."""
    hatch = _HATCHES[number // len(style.LINES) % len(_HATCHES)]
    return {"facecolor": style.colour(number), "edgecolor": style.PAPER if hatch else style.INK, "hatch": hatch}


def _is_wide(values: Values, metric: str) -> bool:
    """Return True if the values of an error span so much that small ones would be flat on a linear axis."""
    numbers = [value for of_run in values.values() for levels in of_run.values() for value in levels.values()]
    spread = min(numbers) > 0 and max(numbers) > 20 * min(numbers)
    return spread and not DISPLAY[metric].higher_is_better


def _best(values: Values, metric: str, severity: int | None = None, corruption: str | None = None) -> set[str]:
    """Return the runs of the best mean at a severity or under a corruption; none if there is only one run."""
    means = {}
    for label, of_run in values.items():
        rows = [levels for name, levels in of_run.items() if corruption in (None, name)]
        numbers = [value for levels in rows for at, value in levels.items() if severity in (None, at)]
        if numbers:
            means[label] = float(np.mean(numbers))
    if len(means) < 2:
        return set()
    best = (max if DISPLAY[metric].higher_is_better else min)(means.values())
    return {label for label, mean in means.items() if mean == best}


def _mark_best(ax: Axes, values: Values, names: list[str], metric: str) -> None:
    """Draw a diamond at the top of the panel above the best run of each corruption."""
    for place, name in enumerate(names):
        for number in (list(values).index(label) for label in _best(values, metric, corruption=name)):
            at = place + 0.8 / len(values) * (number + 0.5) - 0.4
            look = BEST | {"color": style.colour(number), "clip_on": False}
            ax.scatter([at], [1.04], transform=ax.get_xaxis_transform(), **look)


def _best_handle(values: Values) -> list[Line2D]:
    """Return the entry of the diamonds in a legend, if several runs can have them."""
    return (
        [Line2D([], [], label="best mean", color=style.INK, marker=BEST["marker"], ls="", ms=5)]
        if len(values) > 1
        else []
    )


def _metric_axis(ax: Axes, metric: str, *, logarithmic: bool) -> None:
    """Label the vertical axis with a metric, its unit and direction; an empty name leaves it without a label."""
    if logarithmic:
        ax.set_yscale("log")
        style.set_log_ticks(ax.yaxis)
    else:
        style.set_ticks(ax.yaxis, 5)
    if metric:
        display = DISPLAY[metric]
        scale = f" ({unit(display.scale)})" if unit(display.scale) else ""
        better = "higher" if display.higher_is_better else "lower"
        ax.set_ylabel(f"{display.title}{scale}, {better} is better")
