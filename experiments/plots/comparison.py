"""Comparison of rows over seeds: a panel per metric, a line per row, twelve rows at most."""

from __future__ import annotations

import math
from collections.abc import Collection

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from probattn.experiments.evaluation.metric_display import MetricDisplay, format_value
from probattn.experiments.evaluation.seed_statistics import Cell, Comparison
from probattn.experiments.plots import style
from probattn.experiments.plots.row_panels import ARROWS, mark_missing, pages, row_panels, rows_left_out

OFFSET = 0.28
"""Distance of the seeds below their mean, in rows."""
BETTER, WORSE = "✓", "✗"
SEEDS = {"marker": "o", "ls": "", "ms": 3, "mfc": style.SKY, "mec": "none"}
MEAN = {"marker": "o", "ls": "-", "ms": 5, "lw": 1.6, "color": style.BLUE}
BEST = {"marker": "D", "ls": "-", "ms": 6.5, "lw": 1.6, "color": style.ORANGE}
BASELINE = {"color": style.INK, "lw": 0.8, "ls": "-"}


def figures(table: Comparison, *, main: Collection[str] = ()) -> dict[str, Figure]:
    """Draw a comparison in figures of at most twelve rows; return them by the ending of their names.

    Rows are chosen by :func:`~probattn.experiments.plots.row_panels.pages`. A figure says how many rows only the table
    has. Without a finite mean there are no figures.
    """
    chosen = pages(table, main=main)
    left_out = len(table.rows) - sum(len(page.rows) for page in chosen.values())
    drawn = {name: panels(page, left_out=left_out) for name, page in chosen.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def panels(table: Comparison, *, left_out: int = 0) -> Figure | None:
    """Draw mean ± standard deviation of every row and metric, and the seeds as small dots; None without a finite mean.

    The best of each group is a diamond with its value; the line across a row is at its baseline's mean, and a row is
    marked ✓ or ✗ where the interval of its difference to the baseline excludes 0. A metric that no row has is left out;
    a row without the metric has –.

    Args:
        table: the rows.
        left_out: number of rows that are in the table only.
    """
    metrics = {k: m for k, m in table.metrics.items() if any(math.isfinite(table.cells[r][k].mean) for r in table.rows)}
    if not metrics:
        return None
    figure, axes, places = row_panels(table, metrics)
    for key, ax in axes.items():
        _panel(ax, table, key, metrics[key], places)
    figure.suptitle(_note(table, left_out), x=0.01, ha="left", **style.LABEL)
    style.legend(figure, most=4, handles=_handles(table))
    return figure


def _panel(ax: Axes, table: Comparison, key: str, metric: MetricDisplay, places: dict[str, int]) -> None:
    for row, at in places.items():
        cell, best = table.cells[row][key], row in table.best[key]
        if math.isfinite(cell.mean):
            _row(ax, cell, metric.scale, at, BEST if best else MEAN)
            if best:
                value = format_value(cell.mean, metric.scale)
                look = {"fontsize": style.SMALL, "color": style.INK, "weight": "bold", "ha": "center", "zorder": 2.5}
                box = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.5}
                ax.annotate(value, (metric.scale * cell.mean, at), (0, 5), textcoords="offset points", bbox=box, **look)
        else:
            mark_missing(ax, at)
        if cell.significant:
            mark = BETTER if (cell.difference > 0) == metric.higher_is_better else WORSE
            look = {"va": "center", "ha": "right", "fontsize": style.TEXT, "color": style.INK}
            ax.text(1, at, mark, transform=ax.get_yaxis_transform(), **look)
    for row, baseline in table.baselines.items():
        x = metric.scale * table.cells[baseline][key].mean
        ax.plot([x, x], [places[row] - 0.5, places[row] + 0.5], zorder=1, **BASELINE)


def _row(ax: Axes, cell: Cell, scale: float, at: int, look: dict) -> None:
    if cell.n > 1:
        ax.plot([scale * value for value in cell.values], [at + OFFSET] * cell.n, zorder=2, **SEEDS)
    spread = scale * (cell.std or 0.0)
    mean = scale * cell.mean
    ax.plot([mean - spread, mean + spread], [at, at], color=look["color"], lw=look["lw"], zorder=3)
    ax.plot([mean], [at], **look, zorder=4)


def _note(table: Comparison, left_out: int) -> str:
    """Return how to read the arrows and marks, and how many rows are missing."""
    parts = [ARROWS]
    if any(table.cells[row][key].significant for row in table.rows for key in table.metrics):
        parts.append(f"{BETTER} better, {WORSE} worse than the baseline: the paired 95\u00a0% interval excludes 0")
    return "\n".join([*parts, *rows_left_out(left_out)])


def _handles(table: Comparison) -> list[Line2D]:
    cells = [table.cells[row][key] for row in table.rows for key in table.metrics]
    named = [(MEAN, "one value" if all(cell.std is None for cell in cells) else "mean ± std")]
    if any(cell.n > 1 for cell in cells):
        named.append((SEEDS, "each seed"))
    if any(table.best.values()):
        named.append((BEST, "best of its group" if len(table.groups) > 1 else "best"))
    if table.baselines:
        named.append((BASELINE, "mean of the baseline"))
    return [Line2D([], [], label=label, **look) for look, label in named]
