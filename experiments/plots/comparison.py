"""Comparison of rows over seeds: a panel per metric, a line per row."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from probattn.experiments.evaluation.metric_display import MISSING, arrow, unit
from probattn.experiments.evaluation.seed_statistics import Cell, Comparison
from probattn.experiments.plots import style
from probattn.inference.metrics import MetricDisplay

PANELS = 4
"""Panels in a row of the figure."""
OFFSET = 0.28
"""Distance of the seeds below their mean, in rows."""
SEEDS = {"marker": "o", "ls": "", "ms": 3, "mfc": style.SKY, "mec": "none"}
MEAN = {"marker": "o", "ls": "-", "ms": 5, "lw": 1.6, "color": style.BLUE}
BEST = {"marker": "D", "ls": "-", "ms": 5.5, "lw": 1.6, "color": style.ORANGE}
BASELINE = {"color": style.INK, "lw": 0.8, "ls": "-"}


def panels(table: Comparison) -> Figure | None:
    """Draw mean ± standard deviation of every row and metric, and the seeds as small dots; None without a finite mean.

    The best of each group is a diamond; the line across a row is at its baseline's mean. A metric that no row has is
    left out; a row without the metric has –.
    """
    metrics = {k: m for k, m in table.metrics.items() if any(math.isfinite(c[k].mean) for c in table.cells.values())}
    if not metrics:
        return None
    places, headings = _places(table)
    columns = min(PANELS, len(metrics))
    bands = math.ceil(len(metrics) / columns)
    height = 0.75 + 0.19 * (len(places) + len(headings))
    size = (2.2 + 1.9 * columns, height * bands + 0.35)
    figure, grid = style.subplots(size, bands, columns, sharey=True, squeeze=False)
    axes = grid.flatten()
    for ax, (key, metric) in zip(axes, metrics.items(), strict=False):
        _panel(ax, table, key, metric, places)
    for ax in axes[len(metrics) :]:
        ax.set_axis_off()
    names = {at: row for row, at in places.items()} | headings
    labels = {at: style.shorten(names[at], limit=36) for at in sorted(names)}
    axes[0].set_yticks(list(labels), list(labels.values()))
    axes[0].set_ylim(max(places.values()) + 0.7, -0.7)
    for ax in axes[::columns]:
        for label, at in zip(ax.get_yticklabels(), labels, strict=True):
            label.set(color=style.INK, style="italic" if at in headings else "normal")
    figure.legend(handles=_handles(table), ncols=4, **style.LEGEND)
    return figure


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


def _panel(ax: Axes, table: Comparison, key: str, metric: MetricDisplay, places: dict[str, int]) -> None:
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", color=style.PALE, lw=0.4)
    for row, at in places.items():
        cell = table.cells[row][key]
        if math.isfinite(cell.mean):
            _row(ax, cell, metric.scale, at, BEST if row in table.best[key] else MEAN)
        else:
            look = {"va": "center", "fontsize": style.TEXT, "color": style.GREY}
            ax.text(0.03, at, MISSING, transform=ax.get_yaxis_transform(), **look)
    for row, baseline in table.baselines.items():
        x = metric.scale * table.cells[baseline][key].mean
        ax.plot([x, x], [places[row] - 0.5, places[row] + 0.5], zorder=1, **BASELINE)
    title = f"{metric.title} {unit(metric.scale)} {arrow(metric)}"
    ax.set_title(" ".join(title.split()), **style.TITLE)
    ax.xaxis.set_major_locator(MaxNLocator(3))
    ax.xaxis.set_major_formatter(style.PLAIN)
    ax.tick_params(axis="x", labelbottom=True)
    ax.margins(x=0.08)


def _row(ax: Axes, cell: Cell, scale: float, at: int, look: dict) -> None:
    if cell.n > 1:
        ax.plot([scale * value for value in cell.values], [at + OFFSET] * cell.n, zorder=2, **SEEDS)
    spread = scale * (cell.std or 0.0)
    mean = scale * cell.mean
    ax.plot([mean - spread, mean + spread], [at, at], color=look["color"], lw=look["lw"], zorder=3)
    ax.plot([mean], [at], **look, zorder=4)


def _handles(table: Comparison) -> list[Line2D]:
    several = any(cell.n > 1 for cells in table.cells.values() for cell in cells.values())
    named = [(MEAN, "mean ± std" if several else "one seed")]
    if several:
        named.append((SEEDS, "each seed"))
    if any(table.best.values()):
        named.append((BEST, "best of its group" if len(table.groups) > 1 else "best"))
    if table.baselines:
        named.append((BASELINE, "mean of the baseline"))
    return [Line2D([], [], label=label, **look) for look, label in named]
