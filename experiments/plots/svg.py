"""Figures as SVG files that follow the reader's light or dark colour scheme."""

import io
import re
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from probattn.experiments.plots.style import DARK, PAPER
from probattn.inference.io.files import write_bytes


def save_figure(path: Path, figure: Figure) -> None:
    """Write a figure as SVG, atomically.

    Raises:
        OSError: it cannot be written; names ``path``.
    """
    write_bytes(path, to_svg(figure))


def to_svg(figure: Figure) -> bytes:
    """Return the figure as SVG, the same bytes for the same figure.

    On a dark screen its colours are those of :data:`~probattn.experiments.plots.style.DARK`; a program that ignores
    style sheets shows the light ones.
    """
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "probattn"}):
        figure.savefig(file, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None})
    content = file.getvalue()
    # Matplotlib names clip paths by digests of addresses in memory: number them in place.
    names = dict.fromkeys(re.findall(rb'<clipPath id="([^"]+)"', content))
    numbers = {name: b"clip%d" % number for number, name in enumerate(names)}
    pattern = rb'(<clipPath id="|url\(#)([^")]+)'
    content = re.sub(pattern, lambda match: match[1] + numbers.get(match[2], match[2]), content)
    return content.replace(b"</style>", f"\n{_DARK_RULES}</style>".encode(), 1)


_DARK_RULES = "\n".join(
    (
        "@media (prefers-color-scheme: dark) {",
        *(
            f'  [style*="{part}: {light}"] {{{part}: {dark} !important}}'
            for light, dark in DARK.items()
            for part in ("fill", "stroke")
        ),
        "}",
    )
)
