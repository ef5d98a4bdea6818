"""Figures as SVG files that follow the reader's light or dark colour scheme."""

import io
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from probattn.experiments.plots.style import DARK, PAPER
from probattn.inference.io.files import write_bytes

DARK_RULES = "\n".join(
    f'[style*="{part}: {light}"] {{{part}: {dark} !important}}'
    for light, dark in DARK.items()
    for part in ("fill", "stroke")
)


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure as SVG, atomically.

    Raises:
        OSError: it cannot be written; names ``path``.
    """
    write_bytes(path, to_svg(figure))


def to_svg(figure: Figure) -> bytes:
    """Return the figure as SVG, whose colours on a dark screen are those of the style's ``DARK``."""
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "probattn"}):
        figure.savefig(file, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None})
    rules = f"\n@media (prefers-color-scheme: dark) {{\n{DARK_RULES}\n}}</style>"
    return file.getvalue().replace(b"</style>", rules.encode(), 1)
