"""Panels with a line per row of a comparison, and its pages of at most twelve rows."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from probattn.experiments.evaluation.metric_display import MISSING, MetricDisplay, arrow, unit
from probattn.experiments.evaluation.seed_statistics import Comparison, _best
from probattn.experiments.plots import style

ROWS = 12
"""Largest number of rows of a page."""
PANELS = 4
"""Largest number of panels next to each other."""
ARROWS = "↑ higher is better, ↓ lower is better"
"""Key to the arrows in the titles of panels."""


def pages(table: Comparison, *, main: Collection[str] = ()) -> dict[str, Comparison]:
    """Divide a comparison into pages of at most twelve rows; return them by the ending of their figures' names.

    Of more rows only those in ``main`` are kept, if any are; those of each group are a page of their own if they do
    not fit into one.
    """
    rows = table.rows
    if len(rows) > ROWS:
        rows = tuple(row for row in rows if row in main) or rows
    if len(rows) <= ROWS:
        return {"": select(table, rows)}
    groups = [[row for row in group if row in rows] for group in table.groups.values()]
    parts = [group[at : at + ROWS] for group in groups for at in range(0, len(group), ROWS)]
    return {f"-{number}" if number > 1 else "": select(table, part) for number, part in enumerate(parts, 1)}


def row_panels(table: Comparison, metrics: dict[str, MetricDisplay]) -> tuple[Figure, dict[str, Axes], dict[str, int]]:
    """Return a figure with a titled panel per metric, the panels by metric, and the position of each row in them.

    Rows are labelled by their whole names, below the headings of their groups.
    """
    bands = math.ceil(len(metrics) / PANELS)
    columns = math.ceil(len(metrics) / bands)
    places, headings = _places(table)
    names = {at: row for row, at in places.items()} | headings
    labels = {at: style.wrapped(names[at], 44) for at in sorted(names)}
    lines = [line for label in labels.values() for line in label.split("\n")]
    pitch = max(0.25, 0.06 + 0.13 * max(label.count("\n") + 1 for label in labels.values()))
    size = (0.4 + 0.068 * max(map(len, lines)) + 1.9 * columns, (0.6 + pitch * len(labels)) * bands + 0.3)
    figure, grid = style.subplots(size, bands, columns, sharey=True, squeeze=False)
    axes = list(grid.flatten())
    for ax in axes[len(metrics) :]:
        ax.remove()
    panels = dict(zip(metrics, axes, strict=False))
    for key, ax in panels.items():
        _prepare(ax, metrics[key])
    axes[0].set_yticks(list(labels), list(labels.values()))
    axes[0].set_ylim(max(places.values()) + 0.7, -0.7)
    for ax in axes[: len(metrics) : columns]:
        for label, at in zip(ax.get_yticklabels(), labels, strict=True):
            label.set(color=style.INK, style="italic" if at in headings else "normal")
    return figure, panels, places


def rows_left_out(number: int) -> list[str]:
    """Return a sentence on the rows that only the table has; none if there are none."""
    return [f"{number} more row{'s are' if number > 1 else ' is'} in the table"] if number else []


def mark_missing(ax: Axes, at: int) -> None:
    """Write – where a row has no value."""
    look = {"va": "center", "fontsize": style.TEXT, "color": style.GREY}
    ax.text(0.03, at, MISSING, transform=ax.get_yaxis_transform(), **look)


def _prepare(ax: Axes, metric: MetricDisplay) -> None:
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", color=style.PALE, lw=0.4)
    title = f"{metric.title} {unit(metric.scale)} {arrow(metric)}"
    ax.set_title(" ".join(title.split()), **style.TITLE)
    ax.xaxis.set_major_locator(MaxNLocator(3))
    ax.xaxis.set_major_formatter(style.PLAIN)
    ax.tick_params(axis="x", labelbottom=True)
    ax.margins(x=0.14)


def _places(table: Comparison) -> tuple[dict[str, int], dict[int, str]]:
    """Return the vertical position of each row, and the headings by position."""
    places, headings, at = {}, {}, 0
    for heading, rows in table.groups.items():
        if heading:
            headings[at] = heading
            at += 1
        for row in rows:
            places[row] = at
            at += 1
    return places, headings


def select(comparison: Comparison, rows: Collection[str]) -> Comparison:
    """Return the comparison of some of the rows: the best is the best of these; cells of baselines stay."""
    groups = {name: tuple(row for row in group if row in rows) for name, group in comparison.groups.items()}
    groups = {name: group for name, group in groups.items() if group}
    baselines = {row: other for row, other in comparison.baselines.items() if row in rows}
    cells = {row: cells for row, cells in comparison.cells.items() if row in rows or row in baselines.values()}
    best = _best(cells, groups, comparison.metrics)
    return replace(comparison, groups=groups, baselines=baselines, cells=cells, best=best)
