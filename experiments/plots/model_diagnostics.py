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
MANY = 6
"""Largest number of lines of single layers that can be told apart."""


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

    Heads of zeros are left out. A dashed line is at 95 %. Of more than :data:`MANY` layers in all,
    a line is the median of a model's layers, and their range is shaded.

    Args:
        models: name → layer → spectrum.
    """
    is_divided = sum(map(len, models.values())) <= MANY
    # Name of a line → shares of the layers that it stands for, a column each
    lines: dict[str, pd.DataFrame] = {}
    for name, spectra in models.items():
        of_layers = pd.DataFrame({layer: _shares(spectra[layer]) for layer in spectra})
        shares = of_layers.dropna(axis=1, how="all")
        of_model = f", {name}" if len(models) > 1 else ""
        if is_divided:
            lines |= {f"{layer}{of_model}": shares[[layer]] for layer in shares}
        elif len(shares):
            lines[f"median of {len(shares.columns)} layers{of_model}"] = shares
    return _curves(lines, level=0.95, xlabel="component", ylabel="share of the singular values")


def _shares(spectrum: Spectrum) -> pd.Series:
    """Return the cumulative share of the singular values of a layer, mean of its heads."""
    values = spectrum.values.detach().cpu().double()
    shares = values.cumsum(-1) / values.sum(-1, keepdim=True)  # NaN of a head of zeros
    return pd.Series(shares.nanmean(0))


def similarity(runs: Mapping[str, Mapping[str, float]]) -> Figure | None:
    """Draw the mean cosine between tokens after each attention layer, a line per run (CGP paper,
    Fig. III).

    Args:
        runs: name → layer → mean cosine, in order of depth.
    """
    lines = {name: pd.DataFrame(list(layers.values())) for name, layers in runs.items() if layers}
    return _curves(lines, xlabel="attention layer", ylabel="mean cosine between tokens")


def _curves(
    lines: Mapping[str, pd.DataFrame],
    *,
    level: float | None = None,
    **labels: str,
) -> Figure | None:
    """Draw the median of the columns of each frame against 1, 2, …, their range, and a dashed line
    at a level; None without a line."""
    if not lines:
        return None
    figure, (ax,) = style.panels(height=2.8)
    for number, (name, frame) in enumerate(lines.items()):
        places = range(1, len(frame) + 1)
        colour = style.line_colour(number)
        if len(frame.columns) > 1:
            ends = frame.min(axis=1), frame.max(axis=1)
            ax.fill_between(places, *ends, color=colour, alpha=0.15, lw=0)
        ax.plot(
            places,
            frame.median(axis=1),
            marker="o",
            ms=2,
            color=colour,
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
