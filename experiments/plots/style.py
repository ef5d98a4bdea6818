"""Style shared by all figures: colours, font sizes, tick formats, axes without clutter, whole names, legends."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from torch import Tensor

from probattn.experiments.displayable import displayable

# The hues of Okabe and Ito's palette, distinguishable with every common colour blindness, as dark as white paper needs.
BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER = "#005a9c", "#b83c00", "#009e73", "#c76a9c", "#3f97d3", "#b58900"
PAPER, INK, GREY, PALE = "#ffffff", "#222222", "#595959", "#d9d9d9"
LINES = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY, INK)
DARK = {
    PAPER: "#0d1117",
    INK: "#f0f3f6",
    GREY: "#9aa4af",
    PALE: "#3d444d",
    BLUE: "#3a8fd0",
    ORANGE: "#e06a2a",
    GREEN: "#14a57c",
    PURPLE: "#d58bb5",
    SKY: "#8fd0f5",
    AMBER: "#ecc94b",
}
"""Colour on a dark screen of each colour on white paper; figures use no other colours."""
SMALL, TEXT, HEAD = 8, 9, 10  # points
SIZE = (3.7, 4.1)  # inches; three figures fit next to each other on a wide screen
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")  # 0.3, never "1e-1 + 0.2" in a corner
PERCENT = FuncFormatter(lambda value, _: f"{100 * value:g}\u00a0%")
ROUND = [1, 2, 2.5, 5, 10]  # steps between ticks
COLUMNS = 3
LABEL = {"fontsize": SMALL, "color": GREY}
TITLE = {"fontsize": TEXT, "loc": "left", "color": INK}
HEADING = {"fontsize": HEAD, "loc": "left", "color": INK}
LEGEND = {"loc": "outside lower center", "frameon": False, "fontsize": SMALL, "labelcolor": INK}


def panel_grid(count: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``count`` panels, three to a row, each ``height`` inches high."""
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(9.6 * max(columns, 2) / COLUMNS, height * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(count)]
    for ax in axes:
        tidy(ax)
        ax.xaxis.labelpad = 1
    return figure, axes


def subplots(size: tuple[float, float], rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """Return a figure, its size in inches, and its axes as :meth:`matplotlib.figure.Figure.subplots` does."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, **options)
    for ax in figure.axes:
        tidy(ax)
    return figure, axes


def colour(number: int) -> str:
    """Return the colour of line ``number``; colours repeat."""
    return LINES[number % len(LINES)]


def set_ticks(axis: Axis, count: int, formatter: Formatter = PLAIN, *, integer: bool = False) -> None:
    """Set at most ``count`` intervals between round ticks, and their format."""
    axis.set_major_locator(MaxNLocator(count, steps=ROUND, integer=integer))
    axis.set_major_formatter(formatter)


def set_log_ticks(axis: Axis) -> None:
    """Set ticks at 1, 2 and 5 of each decade of a log axis, in plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(PLAIN)
    axis.set_minor_locator(NullLocator())


def percent(*axes: Axis) -> None:
    """Label the ticks in percent."""
    for axis in axes:
        axis.set_major_formatter(PERCENT)


def tidy(ax: Axes) -> None:
    """Remove the top and right spines of ``ax`` and make its ticks and labels small and grey."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(PALE)
    ax.tick_params(which="both", labelsize=SMALL, colors=GREY, color=PALE, length=3)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set(**LABEL)
    ax.set_axisbelow(True)


def to_numpy(values: Tensor) -> np.ndarray:
    """Return a tensor of any device and precision as float64."""
    return values.detach().cpu().double().numpy()


def wrapped(name: str, width: int = 30) -> str:
    """Return a whole path or name over lines of at most ``width`` characters, as Matplotlib displays it.

    Lines end after a space or one of ``/ . , + _ -`` where they can. A legend hides labels that start with _.
    """
    name = displayable(name.removeprefix("network."))
    lines = [""]
    for part in re.findall(rf"[^ /.,+_-]{{1,{width}}}[ /.,+_-]*|[ /.,+_-]+", name):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    name = literal("\n".join(line.rstrip() for line in lines))
    return f" {name}" if name.startswith("_") else name


def legend(figure: Figure, *, most: int, handles: Sequence[Artist] | None = None, **options: Any) -> None:
    """Add a legend below the panels, in at most ``most`` columns that fit, and make room for it."""
    if handles is None:
        handles = [handle for ax in figure.axes for handle in ax.get_legend_handles_labels()[0]]
    labels = [str(handle.get_label()) for handle in handles]
    width, height = figure.get_size_inches()
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, min(most, len(labels), int(width / (0.07 * longest + 0.65))))
    rows = [labels[at :: math.ceil(len(labels) / columns)] for at in range(math.ceil(len(labels) / columns))]
    lines = sum(max(label.count("\n") + 1 for label in row) for row in rows)
    figure.set_size_inches(width, height + 0.17 * lines)
    figure.legend(handles=handles, labels=labels, ncols=columns, **LEGEND | options)


def literal(text: str) -> str:
    r"""Return text that Matplotlib displays as it is: a $ would start a formula; control characters are escaped.

    Line breaks stay.
    """
    return "\n".join(map(displayable, text.split("\n"))).replace("$", r"\$")
