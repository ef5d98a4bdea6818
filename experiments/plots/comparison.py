"""Comparison of rows over seeds: a panel per metric, a line per row, twelve rows at most."""

from __future__ import annotations

import math
from collections.abc import Collection

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from probattn.experiments.evaluation.metric_display import MISSING, arrow, format_value, unit
from probattn.experiments.evaluation.seed_statistics import Cell, Comparison, select
from probattn.experiments.plots import style
from probattn.inference.metrics import MetricDisplay

ROWS = 12
"""Largest number of rows of a figure."""
PANELS = 4
"""Largest number of panels next to each other."""
OFFSET = 0.28
"""Distance of the seeds below their mean, in rows."""
BETTER, WORSE = "✓", "✗"
SEEDS = {"marker": "o", "ls": "", "ms": 3, "mfc": style.SKY, "mec": "none"}
MEAN = {"marker": "o", "ls": "-", "ms": 5, "lw": 1.6, "color": style.BLUE}
BEST = {"marker": "D", "ls": "-", "ms": 6.5, "lw": 1.6, "color": style.ORANGE}
BASELINE = {"color": style.INK, "lw": 0.8, "ls": "-"}


def figures(table: Comparison, *, main: Collection[str] = ()) -> dict[str, Figure]:
    """Draw a comparison in figures of at most twelve rows; return them by the ending of their names.

    Of more rows only those in ``main`` are drawn, if any are; those of each group are a figure of their own if they do
    not fit into one. A figure says how many rows only the table has. Without a finite mean there are no figures.
    """
    rows = table.rows
    if len(rows) > ROWS:
        rows = tuple(row for row in rows if row in main) or rows
    left_out = len(table.rows) - len(rows)
    if len(rows) <= ROWS:
        parts = {"": rows}
    else:
        groups = [[row for row in group if row in rows] for group in table.groups.values()]
        pages = [group[at : at + ROWS] for group in groups for at in range(0, len(group), ROWS)]
        parts = {f"-{number}" if number > 1 else "": page for number, page in enumerate(pages, 1)}
    drawn = {name: panels(select(table, part), left_out=left_out) for name, part in parts.items()}
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
    places, headings = _places(table)
    bands = math.ceil(len(metrics) / PANELS)
    columns = math.ceil(len(metrics) / bands)
    names = {at: row for row, at in places.items()} | headings
    labels = {at: style.wrapped(names[at], 44) for at in sorted(names)}
    lines = [line for label in labels.values() for line in label.split("\n")]
    pitch = max(0.25, 0.06 + 0.13 * max(label.count("\n") + 1 for label in labels.values()))
    size = (0.4 + 0.068 * max(map(len, lines)) + 1.9 * columns, (0.6 + pitch * len(labels)) * bands + 0.3)
    figure, grid = style.subplots(size, bands, columns, sharey=True, squeeze=False)
    axes = list(grid.flatten())
    for ax in axes[len(metrics) :]:
        ax.remove()
    for ax, (key, metric) in zip(axes, metrics.items(), strict=False):
        _panel(ax, table, key, metric, places)
    axes[0].set_yticks(list(labels), list(labels.values()))
    axes[0].set_ylim(max(places.values()) + 0.7, -0.7)
    for ax in axes[: len(metrics) : columns]:
        for label, at in zip(ax.get_yticklabels(), labels, strict=True):
            label.set(color=style.INK, style="italic" if at in headings else "normal")
    figure.suptitle(_note(table, left_out), x=0.01, ha="left", **style.LABEL)
    style.legend(figure, most=4, handles=_handles(table))
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
        cell, best = table.cells[row][key], row in table.best[key]
        if math.isfinite(cell.mean):
            _row(ax, cell, metric.scale, at, BEST if best else MEAN)
            if best:
                value = format_value(cell.mean, metric.scale)
                look = {"fontsize": style.SMALL, "color": style.INK, "weight": "bold", "ha": "center", "zorder": 2.5}
                box = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.5}
                ax.annotate(value, (metric.scale * cell.mean, at), (0, 5), textcoords="offset points", bbox=box, **look)
        else:
            look = {"va": "center", "fontsize": style.TEXT, "color": style.GREY}
            ax.text(0.03, at, MISSING, transform=ax.get_yaxis_transform(), **look)
        if cell.significant:
            mark = BETTER if (cell.difference > 0) == metric.higher_is_better else WORSE
            look = {"va": "center", "ha": "right", "fontsize": style.TEXT, "color": style.INK}
            ax.text(1, at, mark, transform=ax.get_yaxis_transform(), **look)
    for row, baseline in table.baselines.items():
        x = metric.scale * table.cells[baseline][key].mean
        ax.plot([x, x], [places[row] - 0.5, places[row] + 0.5], zorder=1, **BASELINE)
    title = f"{metric.title} {unit(metric.scale)} {arrow(metric)}"
    ax.set_title(" ".join(title.split()), **style.TITLE)
    ax.xaxis.set_major_locator(MaxNLocator(3))
    ax.xaxis.set_major_formatter(style.PLAIN)
    ax.tick_params(axis="x", labelbottom=True)
    ax.margins(x=0.14)


def _row(ax: Axes, cell: Cell, scale: float, at: int, look: dict) -> None:
    if cell.n > 1:
        ax.plot([scale * value for value in cell.values], [at + OFFSET] * cell.n, zorder=2, **SEEDS)
    spread = scale * (cell.std or 0.0)
    mean = scale * cell.mean
    ax.plot([mean - spread, mean + spread], [at, at], color=look["color"], lw=look["lw"], zorder=3)
    ax.plot([mean], [at], **look, zorder=4)


def _note(table: Comparison, left_out: int) -> str:
    """Return how to read the arrows and marks, and how many rows are missing."""
    parts = ["↑ higher is better, ↓ lower is better"]
    if any(table.cells[row][key].significant for row in table.rows for key in table.metrics):
        parts.append(f"{BETTER} better, {WORSE} worse than the baseline: the paired 95\u00a0% interval excludes 0")
    if left_out:
        parts.append(f"{left_out} more row{'s are' if left_out > 1 else ' is'} in the table")
    return "\n".join(parts)


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
