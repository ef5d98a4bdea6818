"""Differences from the baseline with their intervals (a forest plot): a panel per metric, a line per row."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from probattn.experiments.evaluation.metric_display import MetricDisplay, heading
from probattn.experiments.evaluation.seed_statistics import Cell, Comparison
from probattn.experiments.plots import style

COLUMNS = 4
"""Largest number of panels next to each other."""
BETTER = {"marker": "o", "color": style.BLUE, "label": "better"}
WORSE = {"marker": "X", "color": style.ORANGE, "label": "worse"}
OPEN = {"marker": "o", "color": style.GREY, "mfc": style.PAPER, "label": "the interval contains 0"}


def differences(comparison: Comparison) -> Figure | None:
    """Draw the difference of each row from its baseline and its interval; None without an interval.

    A row is blue where it is better by an interval that excludes 0, orange where it is worse, grey and hollow
    otherwise. A metric without any interval is left out.
    """
    rows, cells = [row for row in comparison.rows if row in comparison.baselines], comparison.cells
    metrics = {
        key: metric
        for key, metric in comparison.metrics.items()
        if any(cells[row][key].low is not None for row in rows)
    }
    if not metrics:
        return None
    names = [style.wrapped(row, 44) for row in rows]
    height = 0.8 + 0.16 * len(names) + 0.13 * sum(name.count("\n") + 1 for name in names)
    longest = max(len(line) for name in names for line in name.split("\n"))
    width = 1.9 + 0.068 * longest / min(COLUMNS, len(metrics))
    figure, axes = style.panels(len(metrics), width=width, height=height, columns=COLUMNS, sharey=True)
    for look in (BETTER, WORSE, OPEN):  # for the legend, in this order
        axes[0].plot([], [], **look)
    for ax, (key, metric) in zip(axes, metrics.items(), strict=True):
        ax.axvline(0, color=style.INK, lw=0.8, zorder=1)
        ax.grid(axis="y", color=style.PALE, lw=0.4)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.set_title(heading(metric), **style.TITLE)
        shown = [(place, cells[row][key]) for place, row in enumerate(rows) if cells[row][key].difference is not None]
        for place, cell in shown:
            look = _look(cell, metric)
            ax.plot([metric.scale * cell.difference], [place], **look, zorder=4)
            if cell.low is not None:
                ax.plot([metric.scale * cell.low, metric.scale * cell.high], [place, place], color=look["color"])
    axes[0].set_yticks(range(len(rows)), names)
    axes[0].set_ylim(len(rows) - 0.3, -0.7)
    baselines = {comparison.baselines[row] for row in rows}
    baseline = style.wrapped(baselines.pop(), 80) if len(baselines) == 1 else "the baseline of each row"
    note = f"Difference from {baseline}, with its paired 95\u00a0% interval; ↑ higher is better, ↓ lower is better"
    figure.suptitle(note, x=0.01, ha="left", **style.LABEL)
    style.legend(figure)
    return figure


def _look(cell: Cell, metric: MetricDisplay) -> dict[str, str]:
    if not cell.significant:
        return OPEN
    return BETTER if (cell.difference > 0) == metric.higher_is_better else WORSE
