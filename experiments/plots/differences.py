"""Differences from the baseline with their intervals (a forest plot): a panel per metric, a line
per row."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from probattn.experiments.evaluation.metric_display import heading
from probattn.experiments.evaluation.seed_statistics import Cell, Comparison
from probattn.experiments.plots import style
from probattn.inference.metrics import Metric

COLUMNS = 4
"""Largest number of panels next to each other."""
BETTER: style.Look = {"marker": "o", "color": style.BLUE, "label": "better"}
WORSE: style.Look = {"marker": "X", "color": style.ORANGE, "label": "worse"}
OPEN: style.Look = {
    "marker": "o",
    "color": style.GREY,
    "mfc": style.PAPER,
    "label": "no more than chance",
}


def differences(comparison: Comparison) -> Figure | None:
    """Draw the difference of each row from its baseline and its interval; None without an interval.

    A row is blue where it is better by more than chance after Holm's correction, orange where it is
    worse, grey and hollow otherwise. A difference without an interval has no mark, and a metric
    without any is left out.
    """
    rows = [row for row in comparison.rows if row in comparison.baselines]
    columns = {key: [comparison.cells[row][key] for row in rows] for key in comparison.metrics}
    drawn = {
        key: cells for key, cells in columns.items() if any(cell.has_interval for cell in cells)
    }
    if not drawn:
        return None
    figure, axes = _panels([style.wrapped(row, 44) for row in rows], count=len(drawn))
    for ax, (key, cells) in zip(axes, drawn.items(), strict=True):
        metric = comparison.metrics[key]
        ax.set_title(heading(metric), **style.TITLE)
        for place, cell in enumerate(cells):
            if cell.has_interval:
                _draw(ax, place, cell, metric)
    baseline = "the baseline of each row"
    baselines = {comparison.baselines[row] for row in rows}
    if len(baselines) == 1:
        baseline = style.wrapped(baselines.pop(), 80)
    note = (
        f"Difference from {baseline}, with its paired 95\u00a0% interval; ↑ higher is better, ↓ "
        "lower is better"
    )
    figure.suptitle(note, x=0.01, ha="left", **style.LABEL)
    style.legend(figure)
    return figure


def _panels(names: list[str], *, count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure whose panels have a line at 0 and the names of the rows on the left."""
    lines = [line for name in names for line in name.split("\n")]
    height = 0.8 + 0.16 * len(names) + 0.13 * len(lines)
    width = 1.9 + 0.068 * max(map(len, lines)) / min(COLUMNS, count)
    figure, axes = style.panels(
        count,
        width=width,
        height=height,
        columns=COLUMNS,
        sharey=True,
    )
    for look in (BETTER, WORSE, OPEN):  # for the legend, in this order
        axes[0].plot([], [], **look)
    for ax in axes:
        ax.axvline(0, color=style.INK, lw=0.8, zorder=1)
        ax.grid(axis="y", color=style.PALE, lw=0.4)
        ax.xaxis.set_major_locator(MaxNLocator(4))
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.3, -0.7)
    return figure, axes


def _draw(
    ax: Axes,
    place: int,
    cell: Cell,
    metric: Metric,
) -> None:
    look = OPEN
    if cell.significant:
        is_better = (cell.difference > 0) == metric.higher_is_better
        look = BETTER if is_better else WORSE
    ax.plot(
        [metric.scale * cell.difference],
        [place],
        **look,
        zorder=4,
    )
    ends = [metric.scale * cell.low, metric.scale * cell.high]
    ax.plot(ends, [place, place], color=look["color"])
