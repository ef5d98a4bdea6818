"""Training curves, spectra of attention, and similarity of tokens."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from probattn.experiments.plots import style
from probattn.inference.diagnostics.attention import Spectrum

TERMS = {
    "step": ("nll", "kl", "penalty", "loss", "lr"),
    "epoch": ("valid/accuracy", "valid/mcc", "valid/nll"),
}
"""Drawn values by horizontal axis; a term has one for each site, such as ``kl/SITE``."""
WINDOWS = 25
"""Number of parts of a curve whose length is the window of the moving mean."""
DASHES = ("-", "--", ":", "-.")


def training(steps: Sequence[Mapping], epochs: Sequence[Mapping]) -> Figure | None:
    """Draw the moving mean of each term of the objective and each validation metric; None without a
    finite value.

    Args:
        steps: rows of ``step`` and per-example terms in nats, ``nll``, ``kl/SITE``,
            ``penalty/SITE``, ``loss``; ``lr``.
        epochs: rows of ``epoch``, ``valid/accuracy``, ``valid/mcc`` and ``valid/nll``.
    """
    panels = [*_curves_of(steps, "step"), *_curves_of(epochs, "epoch")]
    if not panels:
        return None
    figure, axes = style.panels(
        len(panels),
        width=style.WIDTH / 3,
        height=1.8,
    )
    for ax, series in zip(axes, panels, strict=True):
        window = max(1, len(series) // WINDOWS)
        smooth = series.rolling(window, center=True, min_periods=1).mean()
        ax.plot(
            smooth,
            color=style.BLUE,
            marker="" if len(series) > WINDOWS else "o",
            ms=3,
        )
        style.whole_numbers(ax.xaxis)
        title = str(series.name).replace("valid/", "validation ")
        ax.set_title(style.wrapped(title, 40), **style.TITLE)
        ax.set_xlabel(series.index.name)
    return figure


def _curves_of(rows: Sequence[Mapping], x: str) -> list[pd.Series]:
    """Return the finite values of each term of :data:`TERMS` in rows, by the horizontal axis."""
    curves = []
    frame = pd.DataFrame(list(rows)).replace([np.inf, -np.inf], np.nan)
    for term in TERMS[x]:
        for key in frame:
            if key == term or key.startswith(f"{term}/"):
                curve = frame.set_index(x)[key].dropna().astype(float)
                curves += [curve] if len(curve) else []
    return curves


def spectrum(models: Mapping[str, Mapping[str, Spectrum]]) -> Figure | None:
    """Draw the cumulative share of the singular values of attention, mean of the heads (KEP-SVGP
    paper, Fig. 4).

    Heads of zeros are left out. A dashed line is at 95 %.

    Args:
        models: name → layer → spectrum.
    """
    lines: dict[str, np.ndarray] = {}
    for name, spectra in models.items():
        for layer, singular in spectra.items():
            values = singular.values.detach().cpu().double().numpy()
            values = values[values.sum(-1) > 0]
            if len(values) == 0:
                continue
            line = f"{layer}, {name}" if len(models) > 1 else layer
            shares = values.cumsum(-1) / values.sum(-1, keepdims=True)
            lines[line] = shares.mean(0)
    return _curves(lines, level=0.95, xlabel="component", ylabel="share of the singular values")


def similarity(runs: Mapping[str, Mapping[str, float]]) -> Figure | None:
    """Draw the mean cosine between tokens after each attention layer, a line per run (CGP paper,
    Fig. III).

    Args:
        runs: name → layer → mean cosine, in order of depth.
    """
    lines = {name: np.array(list(layers.values())) for name, layers in runs.items() if layers}
    return _curves(lines, xlabel="attention layer", ylabel="mean cosine between tokens")


def _curves(
    lines: Mapping[str, np.ndarray],
    *,
    level: float | None = None,
    **labels: str,
) -> Figure | None:
    """Draw lines against 1, 2, …, and a dashed one at a level; None without a line."""
    if not lines:
        return None
    figure, (ax,) = style.panels(height=2.8)
    for number, (name, line) in enumerate(lines.items()):
        ax.plot(
            range(1, len(line) + 1),
            line,
            marker="o",
            ms=2,
            color=style.line_colour(number),
            ls=DASHES[number // len(style.LINES) % len(DASHES)],
            label=style.wrapped(name, 45),
        )
    if level is not None:
        ax.axhline(level, label=f"{100 * level:g} %", **style.REFERENCE)
    lowest, _ = ax.get_ylim()
    ax.set(ylim=(min(0.0, lowest), 1.02), **labels)
    style.whole_numbers(ax.xaxis)
    style.legend(figure, columns=2)
    return figure
