"""Differences from the baseline over seeds with their intervals (a forest plot): a panel per metric, a line per row."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from probattn.experiments.evaluation.metric_display import MetricDisplay
from probattn.experiments.evaluation.seed_statistics import Cell, Comparison
from probattn.experiments.plots import style
from probattn.experiments.plots.row_panels import ARROWS, mark_missing, pages, row_panels, rows_left_out, select

BETTER = {"marker": "o", "ls": "-", "ms": 5.5, "lw": 1.8, "color": style.BLUE, "label": "better"}
WORSE = {"marker": "X", "ls": "-", "ms": 6.5, "lw": 1.8, "color": style.ORANGE, "label": "worse"}
OPEN = {"marker": "o", "ls": "-", "ms": 4.5, "lw": 1.2, "color": style.GREY, "mfc": style.PAPER}
OPEN |= {"label": "the interval contains 0"}


def figures(table: Comparison, *, main: Collection[str] = ()) -> dict[str, Figure]:
    """Draw the differences of a comparison in figures of at most twelve rows; return them by the ending of their names.

    Rows without a baseline are left out; the others are chosen by
    :func:`~probattn.experiments.plots.row_panels.pages`. A figure says how many of them only the table has. Without an
    interval there are no figures.
    """
    compared = select(table, table.baselines)
    if not compared.rows:
        return {}
    chosen = pages(compared, main=main)
    left_out = len(compared.rows) - sum(len(page.rows) for page in chosen.values())
    drawn = {name: differences(page, left_out=left_out) for name, page in chosen.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def differences(table: Comparison, *, left_out: int = 0) -> Figure | None:
    """Draw the difference of each row from its baseline and its interval; None without an interval.

    A row is blue where it is better by an interval that excludes 0, orange where it is worse, grey and hollow
    otherwise. Differences that are equal for all seeds have no interval and are a hollow point; a row with fewer than
    two seeds has –. A metric without any interval is left out.

    Args:
        table: the rows.
        left_out: number of rows that are in the table only.
    """
    metrics = {
        key: metric
        for key, metric in table.metrics.items()
        if any(table.cells[row][key].low is not None for row in table.rows)
    }
    if not metrics:
        return None
    figure, axes, places = row_panels(table, metrics)
    for key, ax in axes.items():
        ax.axvline(0, color=style.INK, lw=0.8, zorder=1)
        ax.xaxis.set_major_locator(MaxNLocator(4, steps=style.ROUND))
        for row, at in places.items():
            _row(ax, table.cells[row][key], metrics[key], at)
    figure.suptitle(_note(table, left_out), x=0.01, ha="left", **style.LABEL)
    style.legend(figure, most=3, handles=[Line2D([], [], **look) for look in (BETTER, WORSE, OPEN)])
    return figure


def _row(ax: Axes, cell: Cell, metric: MetricDisplay, at: int) -> None:
    if cell.low is None and (cell.difference is None or cell.n < 2):
        mark_missing(ax, at)
        return
    look = {name: value for name, value in _look(cell, metric).items() if name != "label"}
    ax.plot([metric.scale * cell.difference], [at], **look, zorder=4)
    if cell.low is not None:
        ends = [metric.scale * cell.low, metric.scale * cell.high]
        ax.plot(ends, [at, at], color=look["color"], lw=look["lw"], zorder=3)


def _look(cell: Cell, metric: MetricDisplay) -> dict[str, Any]:
    if not cell.significant:
        return OPEN
    return BETTER if (cell.difference > 0) == metric.higher_is_better else WORSE


def _note(table: Comparison, left_out: int) -> str:
    """Return what the differences are from, how to read the arrows, and how many rows are missing."""
    baselines = {table.baselines[row] for row in table.rows if row in table.baselines}
    baseline = style.literal(baselines.pop()) if len(baselines) == 1 else "the baseline of each row"
    parts = [f"Difference from {baseline}, with its paired 95\u00a0% interval", ARROWS]
    return "\n".join([*parts, *rows_left_out(left_out)])
