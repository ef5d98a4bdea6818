"""Style shared by all figures: colours, panels without clutter, whole names, a legend below, files
for dark screens."""

import io
import math
import textwrap
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from probattn.experiments.displayable import displayable
from probattn.inference.io.files import write_bytes

# The hues of Okabe and Ito's palette, distinguishable with every common colour blindness, as dark
# as white paper needs.
BLUE = "#005a9c"
ORANGE = "#b83c00"
GREEN = "#009e73"
PURPLE = "#c76a9c"
SKY = "#3f97d3"
AMBER = "#b58900"
PAPER = "#ffffff"
INK = "#222222"
GREY = "#595959"
PALE = "#d9d9d9"
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
SMALL, TEXT = 8, 9  # points
WIDTH = 9.6  # inches, of a figure across a page
PLAIN = FuncFormatter("{:g}".format)  # 0.3, never "1e-1 + 0.2" in a corner
PERCENT = FuncFormatter(lambda value, _: f"{100 * value:g}\u00a0%")
Look = dict[str, Any]  # options of Matplotlib's functions
LABEL: Look = {"fontsize": SMALL, "color": GREY}
TITLE: Look = {"fontsize": TEXT, "loc": "left", "color": INK}
REFERENCE: Look = {"color": INK, "lw": 1, "ls": "--"}  # a line that others are compared with


def panels(
    count: int = 1,
    *,
    width: float = 4.6,
    height: float = 3.5,
    columns: int = 3,
    **options: Any,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``count`` panels, row by row.

    Args:
        count: number of panels.
        width, height: size of a panel in inches.
        columns: largest number of panels next to each other.
        options: for :meth:`matplotlib.figure.Figure.subplots`.
    """
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(
        figure.subplots(
            rows,
            columns,
            squeeze=False,
            **options,
        ).flat
    )
    for spare in axes[count:]:
        spare.remove()
    for ax in axes[:count]:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(PALE)
        ax.tick_params(
            which="both",
            labelsize=SMALL,
            colors=GREY,
            color=PALE,
            length=3,
        )
        for axis in (ax.xaxis, ax.yaxis):
            axis.label.set(**LABEL)
            axis.set_major_formatter(PLAIN)
        ax.set_axisbelow(True)
    return figure, axes[:count]


def line_colour(number: int) -> str:
    """Return the colour of a line by its place among others."""
    return LINES[number % len(LINES)]


def diagonal(ax: Axes, label: str, *, through: float = 0) -> None:
    """Draw the line on which both coordinates are equal, through a number that the axes show."""
    ax.axline((through, through), slope=1, label=label, **REFERENCE)


def percent(*axes: Any) -> None:
    """Label the ticks of some axes in percent."""
    for axis in axes:
        axis.set_major_formatter(PERCENT)


def whole_numbers(axis: Any, count: int = 5) -> None:
    """Set at most ``count`` intervals between ticks, at integers."""
    axis.set_major_locator(MaxNLocator(count, integer=True))


def wrapped(name: str, width: int = 30) -> str:
    r"""Return a whole name over lines of at most ``width`` characters, as Matplotlib displays it.

    A ``$`` would start a formula, and a legend hides labels that begin with ``_``.
    """
    lines = textwrap.wrap(displayable(name.removeprefix("network.")), width, break_on_hyphens=False)
    text = "\n".join(lines).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def legend(figure: Figure, *, columns: int = 3) -> None:
    """Add a legend below the panels, in at most ``columns`` columns that fit, and make room for
    it."""
    handles: dict[str, Artist] = {}
    for ax in figure.axes:
        drawn, labels = ax.get_legend_handles_labels()
        handles |= dict(zip(labels, drawn, strict=True))
    texts = [label.split("\n") for label in handles]
    longest = max(len(line) for text in texts for line in text)
    width, height = figure.get_size_inches()
    fitting = int(width / (0.07 * longest + 0.65))
    columns = max(1, min(columns, len(texts), fitting))
    lines = max(map(len, texts)) * math.ceil(len(texts) / columns)
    figure.set_size_inches(width, height + 0.17 * lines)
    figure.legend(
        handles=list(handles.values()),
        labels=list(handles),
        ncols=columns,
        loc="outside lower center",
        frameon=False,
        fontsize=SMALL,
        labelcolor=INK,
    )


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure as SVG, atomically.

    Raises:
        OSError: it cannot be written; names ``path``.
    """
    write_bytes(path, to_svg(figure))


def to_svg(figure: Figure) -> bytes:
    """Return a figure as SVG, whose colours on a dark screen are those of :data:`DARK`."""
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "probattn"}):
        figure.savefig(
            file, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None}
        )
    rules = ""
    for light, dark in DARK.items():
        for paint in ("fill", "stroke"):
            rules += f'[style*="{paint}: {light}"] {{{paint}: {dark} !important}}\n'
    style = f"\n@media (prefers-color-scheme: dark) {{\n{rules}}}</style>"
    return file.getvalue().replace(b"</style>", style.encode(), 1)
