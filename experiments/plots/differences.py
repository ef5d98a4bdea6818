"""Differences from the baseline with their intervals (a forest plot): a panel per metric, a line
per row."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from probattn.experiments.evaluation.metric_display import heading
from probattn.experiments.evaluation.seed_statistics import Comparison
from probattn.experiments.plots import style

COLUMNS = 4
"""Largest number of panels next to each other."""
BETTER: style.Look = {"marker": "o", "color": style.BLUE, "label": "better"}
WORSE: style.Look = {"marker": "X", "color": style.ORANGE, "label": "worse"}
OPEN: style.Look = {
    "marker": "o",
    "color": style.GREY,
    "mfc": style.PAPER,
    "label": "the interval contains 0",
}


def differences(comparison: Comparison) -> Figure | None:
    """Draw the difference of each row from its baseline and its interval; None without an interval.

    A row is blue where it is better by an interval that excludes 0, orange where it is worse, grey
    and hollow otherwise. A difference without an interval has no mark, and a metric without any is
    left out.
    """
    rows = {row: comparison.cells[row] for row in comparison.rows if row in comparison.baselines}
    keys = [
        key
        for key in comparison.metrics
        if any(cells[key].low is not None for cells in rows.values())
    ]
    if not keys:
        return None
    names = [style.wrapped(row, 44) for row in rows]
    height = 0.8 + 0.16 * len(names) + 0.13 * sum(name.count("\n") + 1 for name in names)
    longest = max(len(line) for name in names for line in name.split("\n"))
    width = 1.9 + 0.068 * longest / min(COLUMNS, len(keys))
    figure, axes = style.panels(len(keys), width=width, height=height, columns=COLUMNS, sharey=True)
    for look in (BETTER, WORSE, OPEN):  # for the legend, in this order
        axes[0].plot([], [], **look)
    for ax, key in zip(axes, keys, strict=True):
        metric = comparison.metrics[key]
        ax.axvline(0, color=style.INK, lw=0.8, zorder=1)
        ax.grid(axis="y", color=style.PALE, lw=0.4)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.set_title(heading(metric), **style.TITLE)
        for place, cell in enumerate(cells[key] for cells in rows.values()):
            if cell.difference is None or cell.low is None or cell.high is None:
                continue
            is_better = (cell.difference > 0) == metric.higher_is_better
            look = OPEN if not cell.significant else BETTER if is_better else WORSE
            ax.plot([metric.scale * cell.difference], [place], **look, zorder=4)
            ax.plot(
                [metric.scale * cell.low, metric.scale * cell.high],
                [place, place],
                color=look["color"],
            )
    axes[0].set_yticks(range(len(rows)), names)
    axes[0].set_ylim(len(rows) - 0.3, -0.7)
    baselines = {comparison.baselines[row] for row in rows}
    baseline = (
        style.wrapped(baselines.pop(), 80) if len(baselines) == 1 else "the baseline of each row"
    )
    note = (
        f"Difference from {baseline}, with its paired 95\u00a0% interval; ↑ higher is better, ↓ "
        "lower is better"
    )
    figure.suptitle(note, x=0.01, ha="left", **style.LABEL)
    style.legend(figure)
    return figure
