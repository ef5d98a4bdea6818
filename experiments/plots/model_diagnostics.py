"""Training curves, spectra of attention, and similarity of tokens."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from probattn.experiments.plots import style
from probattn.inference.diagnostics.attention import Spectrum

TERMS = {"step": ("nll", "kl", "penalty", "loss", "lr"), "epoch": ("valid/accuracy", "valid/mcc", "valid/nll")}
"""Drawn values by horizontal axis; a term has one for each site, such as ``kl/SITE``."""
POINTS = 60
"""Number of logged steps from which a moving mean is drawn."""


def training(steps: Sequence[Mapping], epochs: Sequence[Mapping]) -> Figure | None:
    """Draw each term of the objective and each validation metric; None without a finite value.

    Args:
        steps: rows of ``step`` and per-example terms in nats, ``nll``, ``kl/SITE``, ``penalty/SITE``, ``loss``; ``lr``.
        epochs: rows of ``epoch``, ``valid/accuracy``, ``valid/mcc`` and ``valid/nll``.
    """
    panels = []
    for rows, x in ((steps, "step"), (epochs, "epoch")):
        frame = pd.DataFrame(list(rows)).replace([np.inf, -np.inf], np.nan)
        names = [key for term in TERMS[x] for key in frame if key == term or key.startswith(f"{term}/")]
        panels += [(frame[[x, key]].dropna().astype(float), x, key) for key in names if frame[key].notna().any()]
    if not panels:
        return None
    figure, axes = style.panels(len(panels), width=style.WIDTH / 3, height=1.8)
    for ax, (series, x, key) in zip(axes, panels, strict=True):
        many = len(series) >= POINTS
        colour = style.BLUE if x == "step" else style.GREEN
        look = {"color": colour, "marker": "" if len(series) > 25 else "o", "ms": 3.5, "lw": 1.6}
        ax.plot(series[x], series[key], **look | ({"lw": 0.8, "alpha": 0.35} if many else {}))
        if many:
            window = max(5, len(series) // 25)
            ax.plot(series[x], series[key].rolling(window, center=True, min_periods=1).mean(), color=colour, lw=1.6)
        if key != "lr" and series[key].min() > 0 and series[key].max() > 100 * series[key].min():
            ax.set_yscale("log")
        style.whole_numbers(ax.xaxis)
        ax.set_title(style.wrapped(key.replace("valid/", "validation "), 40), **style.TITLE)
        ax.set(xlabel=x)
    return figure


def spectrum(models: Mapping[str, Mapping[str, Spectrum]]) -> Figure | None:
    """Draw the cumulative share of the singular values of attention, mean of the heads (KEP-SVGP paper, Fig. 4).

    Args:
        models: name → layer → spectrum. Of one model all layers share a panel, of several each layer has one.
    """
    lines: dict[str, dict[str, np.ndarray]] = {}
    for name, spectra in models.items():
        for layer, part in spectra.items():
            share = _cumulative(part.values.detach().cpu().double().numpy())
            panel, line = (layer, name) if len(models) > 1 else ("", layer)
            if np.isfinite(share).any():
                lines.setdefault(panel, {})[line] = share
    if not lines:
        return None
    figure, axes = style.panels(len(lines), width=4.6 if len(lines) == 1 else style.WIDTH / 3, height=2.8)
    for ax, (panel, rows) in zip(axes, lines.items(), strict=True):
        _draw(ax, rows, list(models) if panel else list(rows))
        ax.axhline(0.95, color=style.INK, lw=1, ls="--", label="95 %")
        ax.set(ylim=(0, 1.02), xlabel="component", ylabel="share of the singular values")
        ax.set_title(style.wrapped(panel), **style.TITLE)
        style.percent(ax.yaxis)
    style.legend(figure, columns=2 if len(lines) == 1 else 4)
    return figure


def similarity(runs: Mapping[str, Mapping[str, float]]) -> Figure | None:
    """Draw the mean cosine between tokens after each attention layer, a line per run (CGP paper, Fig. III).

    Args:
        runs: name → layer → mean cosine, in order of depth.
    """
    depths = {name: np.array(list(layers.values()), dtype=float) for name, layers in runs.items()}
    depths = {name: values for name, values in depths.items() if np.isfinite(values).any()}
    if not depths:
        return None
    figure, (ax,) = style.panels(width=4.6, height=2.8)
    _draw(ax, depths, list(depths), marker="o", ms=3.5)
    ax.set(xlabel="attention layer", ylabel="mean cosine between tokens")
    ax.set_ylim(min(0.0, 1.05 * min(np.nanmin(values) for values in depths.values())), 1.02)
    style.legend(figure, columns=2)
    return figure


def _draw(ax: Axes, rows: Mapping[str, np.ndarray], order: Sequence[str], **markers: object) -> None:
    """Draw each row against 1, 2, …, with the colour and dashes of its place in the order."""
    for name, row in rows.items():
        place = order.index(name)
        dashes = ("-", "--", ":", "-.")[place // len(style.LINES) % 4]
        look = {"color": style.LINES[place % len(style.LINES)], "ls": dashes, "lw": 1.6, **markers}
        ax.plot(np.arange(1, len(row) + 1), row, label=style.wrapped(name, 45), **look)
    style.whole_numbers(ax.xaxis)


def _cumulative(values: np.ndarray) -> np.ndarray:
    """Return the mean over heads ``(heads, N)`` of cumulative shares; heads of zeros are left out."""
    values = values[values.sum(-1) > 0]
    return (values.cumsum(-1) / values.sum(-1, keepdims=True)).mean(0) if len(values) else np.full(1, np.nan)
