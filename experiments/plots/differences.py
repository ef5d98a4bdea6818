"""Differences from the baseline over seeds with their intervals (a forest plot): a panel per metric, a line per row."""

from __future__ import annotations

from collections.abc import Collection

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from probattn.experiments.evaluation.seed_statistics import Cell, Comparison, select
from probattn.experiments.plots import style
from probattn.experiments.plots.row_panels import mark_missing, pages, row_panels
from probattn.inference.metrics import MetricDisplay

BETTER = {"marker": "o", "ls": "-", "ms": 5.5, "lw": 1.8, "color": style.BLUE, "label": "better"}
WORSE = {"marker": "X", "ls": "-", "ms": 6.5, "lw": 1.8, "color": style.ORANGE, "label": "worse"}
OPEN = {"marker": "o", "ls": "-", "ms": 4.5, "lw": 1.2, "color": style.GREY, "mfc": style.PAPER}
OPEN |= {"label": "the interval contains 0"}
NOTE = "Difference from the baseline with its paired 95\u00a0% interval; ↑ higher is better, ↓ lower is better"


def figures(table: Comparison, *, main: Collection[str] = ()) -> dict[str, Figure]:
    """Draw the differences of a comparison in figures of at most twelve rows; return them by the ending of their names.

    Rows without a baseline are left out; the others are chosen by
    :func:`~probattn.experiments.plots.row_panels.pages`. Without an interval there are no figures.
    """
    compared = select(table, [row for row in table.rows if row in table.baselines])
    if not compared.rows:
        return {}
    drawn = {name: differences(page) for name, page in pages(compared, main=main).items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def differences(table: Comparison) -> Figure | None:
    """Draw the difference of each row from its baseline and its interval; None without an interval.

    A row is blue where it is better by an interval that excludes 0, orange where it is worse, grey and hollow
    otherwise, and has – without an interval. A metric without any interval is left out.
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
        scale = metrics[key].scale
        ax.axvline(0, color=style.INK, lw=0.8, zorder=1)
        ax.xaxis.set_major_locator(MaxNLocator(4, steps=style.ROUND))
        for row, at in places.items():
            cell = table.cells[row][key]
            if cell.low is None:
                mark_missing(ax, at)
                continue
            look = {name: value for name, value in _look(cell, metrics[key]).items() if name != "label"}
            line = {"color": look["color"], "lw": look["lw"], "zorder": 3}
            ax.plot([scale * cell.low, scale * cell.high], [at, at], **line)
            ax.plot([scale * cell.difference], [at], **look, zorder=4)
    figure.suptitle(NOTE, x=0.01, ha="left", **style.LABEL)
    style.legend(figure, most=3, handles=[Line2D([], [], **look) for look in (BETTER, WORSE, OPEN)])
    return figure


def _look(cell: Cell, metric: MetricDisplay) -> dict:
    if not cell.significant:
        return OPEN
    return BETTER if (cell.difference > 0) == metric.higher_is_better else WORSE
