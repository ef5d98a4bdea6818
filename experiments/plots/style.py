"""Style shared by all figures: colours, font sizes, tick formats, axes without clutter, names that fit."""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, FuncFormatter, MaxNLocator
from torch import Tensor

from probattn.experiments.displayable import displayable
from probattn.inference.io.atomic_write import write_bytes

# Okabe and Ito's palette, distinguishable with every common colour blindness and in grey print.
BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
INK, GREY, PALE = "#222222", "#6b6b6b", "#d9d9d9"
LINES = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY, INK)
SMALL, TEXT, HEAD = 8, 9, 10  # points
SIZE = (3.7, 4.1)  # inches; three figures fit next to each other on a wide screen
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")  # 0.3, never "1e-1 + 0.2" in a corner
PERCENT = FuncFormatter(lambda value, _: f"{100 * value:g}\u00a0%")
ROUND = [1, 2, 2.5, 5, 10]  # steps between ticks
COLUMNS = 3
LABEL = {"fontsize": SMALL, "color": GREY}
TITLE = {"fontsize": TEXT, "loc": "left", "color": INK}
HEADING = {"fontsize": HEAD, "loc": "left", "color": INK}
LEGEND = {"loc": "outside lower center", "frameon": False, "fontsize": SMALL}


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG, atomically.

    Raises:
        OSError: it cannot be written; names ``path``.
    """
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150)
    write_bytes(path, image.getvalue())


def panel_grid(count: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``count`` panels, three to a row, each ``height`` inches high."""
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(9.6 * max(columns, 2) / COLUMNS, height * rows + 0.3), layout="constrained")
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


def percent(*axes: Axis) -> None:
    """Label the ticks in percent."""
    for axis in axes:
        axis.set_major_formatter(PERCENT)


def tidy(ax: Axes) -> None:
    """Remove the top and right spines of ``ax`` and make its ticks and labels small and grey."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(PALE)
    ax.tick_params(labelsize=SMALL, colors=GREY, color=PALE, length=3)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set(**LABEL)
    ax.set_axisbelow(True)


def to_numpy(values: Tensor) -> np.ndarray:
    """Return a tensor of any device and precision as float64."""
    return values.detach().cpu().double().numpy()


def shorten(name: str, limit: int = 30) -> str:
    """Shorten a path or name to ``limit`` characters in its middle, and escape what Matplotlib would interpret.

    A legend hides labels that start with _.
    """
    name = displayable(name.removeprefix("network."))
    if len(name) > limit:
        name = name[: limit // 3] + "…" + name[-(limit - limit // 3 - 1) :]
    name = literal(name)
    return f" {name}" if name.startswith("_") else name


def literal(text: str) -> str:
    r"""Return text that Matplotlib displays as it is: a $ would start a formula; control characters are escaped.

    Line breaks stay.
    """
    return "\n".join(map(displayable, text.split("\n"))).replace("$", r"\$")
