"""Training curves, spectra of attention, similarity of tokens, and the posterior of each latent site."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from probattn.experiments.plots import style
from probattn.inference.diagnostics.attention import Spectrum
from probattn.inference.diagnostics.convergence import SiteConvergence

ROWS = 12
"""Largest number of sites of a figure."""


def training(steps: Sequence[Mapping], epochs: Sequence[Mapping]) -> Figure | None:
    """Draw each term of the objective and each validation metric in its own panel; values that are not finite are gaps.

    Args:
        steps: rows of ``step`` and per-example terms in nats, ``nll``, ``kl/SITE``, ``penalty/SITE``, ``loss``; ``lr``.
        epochs: rows of ``epoch``, ``valid/accuracy`` and ``valid/mcc`` (fractions) and ``valid/nll``.
    """
    keys = list(dict.fromkeys(key for row in steps for key in row))
    terms = [key for kind in ("nll", "kl", "penalty", "loss", "lr") for key in keys if key.partition("/")[0] == kind]
    panels = [(steps, "step", key) for key in terms]
    panels += [(epochs, "epoch", key) for key in ("valid/accuracy", "valid/mcc", "valid/nll")]
    drawn = [(x, key, *_series(rows, x, key)) for rows, x, key in panels]
    drawn = [panel for panel in drawn if np.isfinite(panel[3]).any()]
    if not drawn:
        return None
    figure, axes = style.panel_grid(len(drawn), height=1.95)
    for ax, (x, key, at, values) in zip(axes, drawn, strict=True):
        _curve(ax, at, values, style.BLUE if x == "step" else style.GREEN, decades=key != "lr")
        title, unit = _panel_title(key)
        ax.set_title(title, **style.TITLE)
        ax.set(xlabel=x, ylabel=unit)
        if ax.get_yscale() == "linear":
            ax.yaxis.set_major_formatter(style.PERCENT if key in ("valid/accuracy", "valid/mcc") else style.PLAIN)
    return figure


def spectrum(spectra: Mapping[str, Spectrum]) -> Figure | None:
    """Draw singular values of the attention kernel (a line per head, the mean bold) and Λ (markers).

    Args:
        spectra: by layer; layers without Λ are left out.
    """
    spectra = {layer: each for layer, each in spectra.items() if each.scale.numel()}
    if not spectra:
        return None
    figure, axes = style.panel_grid(len(spectra), height=2.5)
    for number, (ax, (layer, each)) in enumerate(zip(axes, spectra.items(), strict=True)):
        values, scales = style.to_numpy(each.values), style.to_numpy(each.scale)
        at = np.arange(1, values.shape[-1] + 1)
        ax.plot(at, values.T, color=style.BLUE, alpha=0.5, lw=0.8)[0].set_label("singular values, per head")
        ax.plot(at, values.mean(axis=0), color=style.BLUE, lw=2, label="mean of the heads")
        look = {"marker": "o", "ls": "", "ms": 4, "mfc": "none", "mec": style.ORANGE, "mew": 1}
        ax.plot(np.arange(1, scales.shape[-1] + 1), scales.T, **look)[0].set_label("Λ, per head")
        _log_axis(ax, values, scales)
        ax.set_title(style.wrapped(layer), **style.TITLE)
        ax.set(xlabel="component", ylabel="singular value" if number % style.COLUMNS == 0 else "")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    style.legend(figure, most=3, handles=axes[0].get_legend_handles_labels()[0], loc="outside upper left")
    return figure


def spectrum_by_layer(spectra: Mapping[str, Spectrum]) -> Figure | None:
    """Draw the cumulative share of the singular values, the mean of the heads, by layer (KEP-SVGP paper, Fig. 4c).

    Args:
        spectra: as for :func:`spectrum`.
    """
    shares = {layer: _cumulative(style.to_numpy(each.values)) for layer, each in spectra.items()}
    shares = {layer: share for layer, share in shares.items() if np.isfinite(share).any()}
    if not shares:
        return None
    figure, ax = _lines(shares, x="component", y="cumulative share of the singular values")
    ax.axhline(0.95, color=style.INK, lw=1, ls="--", label="95 %")
    ax.set_ylim(0, 1.02)
    style.percent(ax.yaxis)
    style.legend(figure, most=1)
    return figure


def spectrum_by_model(models: Mapping[str, Mapping[str, Spectrum]]) -> Figure | None:
    """Draw the cumulative share of the singular values, a panel per layer, a line per model (paper, Fig. 4a and b).

    Args:
        models: name → spectra, as for :func:`spectrum`; layers that a model lacks have no line of it.
    """
    shares: dict[str, dict[str, np.ndarray]] = {}
    for layer in dict.fromkeys(layer for spectra in models.values() for layer in spectra):
        values = {name: spectra[layer].values for name, spectra in models.items() if layer in spectra}
        found = {name: _cumulative(style.to_numpy(each)) for name, each in values.items()}
        if any(np.isfinite(share).any() for share in found.values()):
            shares[layer] = {name: found.get(name, np.full(1, np.nan)) for name in models}  # a colour for each model
    if not shares:
        return None
    figure, axes = style.panel_grid(len(shares), height=2.8)
    for ax, (layer, rows) in zip(axes, shares.items(), strict=True):
        _draw_lines(ax, rows, x="component", y="cumulative share of the singular values" if ax is axes[0] else "")
        ax.axhline(0.95, color=style.INK, lw=1, ls="--", label="95 %")
        ax.set_title(style.wrapped(layer), **style.TITLE)
        ax.set_ylim(0, 1.02)
        style.percent(ax.yaxis)
    style.legend(figure, most=4, handles=axes[0].get_legend_handles_labels()[0])
    return figure


def similarity(runs: Mapping[str, Mapping[str, float]]) -> Figure | None:
    """Draw the mean cosine between tokens after each attention layer, a line per run (CGP paper, Fig. III).

    Args:
        runs: name → layer → mean cosine, in order of depth; names are displayed if there are several runs.
    """
    depths = {name: np.array(list(layers.values()), dtype=float) for name, layers in runs.items()}
    depths = {name: values for name, values in depths.items() if np.isfinite(values).any()}
    if not depths:
        return None
    figure, ax = _lines(depths, x="attention layer", y="mean cosine between tokens", marker="o", ms=3.5)
    low = min(np.nanmin(values) for values in depths.values())
    ax.set_ylim(min(0.0, 1.05 * low), 1.02)
    if len(depths) > 1:
        style.legend(figure, most=1)
    return figure


def posterior(sites: Sequence[SiteConvergence]) -> Figure | None:
    """Draw, for each site, KL(q ‖ prior) per scalar, and the ratio of the posterior's to the prior's std.

    Of more than twelve sites those of the lowest KL are drawn.

    Args:
        sites: result of ``posterior_summary``.
    """
    if not sites:
        return None
    of_all = f", the lowest of {len(sites)} sites" if len(sites) > ROWS else ""
    sites = [row for row in sites if row in sorted(sites, key=lambda row: ratio(row.kl, row.size))[:ROWS]]
    figure, (left, right) = style.subplots((9.6, 1.1 + 0.34 * len(sites)), 1, 2, sharey=True)
    rows = np.arange(len(sites))
    density = np.array([ratio(row.kl, row.size) for row in sites])
    spread = np.array([row.std_ratio[0] for row in sites])
    for ax, widths, colour in ((left, density, style.BLUE), (right, spread, style.SKY)):
        bars = ax.barh(rows, np.nan_to_num(widths, posinf=0, neginf=0), height=0.62, color=colour)
        labels = [f"{width:.3g}" if math.isfinite(width) else "–" for width in widths]
        ax.bar_label(bars, labels, padding=3, fontsize=style.SMALL, color=style.INK)
        top = max([float(width) for width in widths if math.isfinite(width)], default=0.0)
        ax.set_xlim(0, 1.18 * max(top, 1.0 if ax is right else 0.0) or 1.0)
        ax.xaxis.set_major_formatter(style.PLAIN)
    right.axvline(1, color=style.INK, lw=1, ls="--")
    left.set_yticks(rows, [style.wrapped(row.site) for row in sites], fontsize=style.SMALL)
    left.invert_yaxis()
    left.set_title(f"KL from the prior (nats per scalar){of_all}", **style.TITLE)
    right.set_title("posterior std / prior std (dashed: as the prior)", **style.TITLE)
    return figure


def ratio(above: float, below: float) -> float:
    """Return above / below; NaN if ``below`` is 0."""
    return float(above) / float(below) if below else math.nan


def _series(rows: Sequence[Mapping], x: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return columns ``x`` and ``key`` of the rows that have both, values that are not finite as NaN."""
    pairs = [(float(row[x]), float(row[key])) for row in rows if key in row and x in row]
    at, values = np.array(pairs, dtype=float).reshape(-1, 2).T
    return at, np.where(np.isfinite(values), values, np.nan)


def _lines(rows: Mapping[str, np.ndarray], *, x: str, y: str, **markers: object) -> tuple[Figure, Axes]:
    """Return a figure of one panel with :func:`_draw_lines`."""
    figure, ax = style.subplots((style.SIZE[0], style.SIZE[1]))
    _draw_lines(ax, rows, x=x, y=y, **markers)
    return figure, ax


def _draw_lines(ax: Axes, rows: Mapping[str, np.ndarray], *, x: str, y: str, **markers: object) -> None:
    """Draw each row against 1, 2, … with its own colour and dashes."""
    for number, (name, row) in enumerate(rows.items()):
        dashes = ("-", "--", ":", "-.")[number // len(style.LINES) % 4]
        look = {"color": style.colour(number), "ls": dashes, "lw": 1.6, **markers}
        ax.plot(np.arange(1, len(row) + 1), row, label=style.wrapped(name, 45), **look)
    ax.set_xlabel(x, labelpad=1)
    ax.set_ylabel(y)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=style.ROUND))


def _cumulative(values: np.ndarray) -> np.ndarray:
    """Return the mean over heads ``(heads, N)`` of cumulative shares; heads of zeros are left out."""
    total = values.sum(axis=-1, keepdims=True)
    rows = (values.cumsum(axis=-1) / np.where(total > 0, total, np.nan))[total[:, 0] > 0]
    return rows.mean(axis=0) if len(rows) else np.full(values.shape[-1], np.nan)


def _curve(ax: Axes, at: np.ndarray, values: np.ndarray, colour: str, *, decades: bool) -> None:
    """Draw all points, many of them pale under their moving mean; with ``decades`` a wide range has a log scale."""
    many = len(values) >= 60
    few = {"marker": "o", "ms": 3.5} if np.isfinite(values).sum() <= 25 else {}
    ax.plot(at, values, color=colour, lw=0.8 if many else 1.6, alpha=0.35 if many else 1, **few)
    if many:
        mean = _moving_mean(values, window=max(5, len(values) // 25))
        ax.plot(at, mean, color=colour, lw=1.6)
    known = values[np.isfinite(values)]
    if decades and known.min() > 0 and known.max() > 100 * known.min():
        ax.set_yscale("log")
    else:
        ax.yaxis.set_major_locator(MaxNLocator(4, steps=style.ROUND))
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=style.ROUND))
    if len(set(at)) == 1:
        ax.set_xticks(at[:1])
    ax.xaxis.set_major_formatter(style.PLAIN)


def _moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of the finite values in a window around each point, shorter at both ends."""
    known = np.isfinite(values)
    ones = np.ones(window)
    total = np.convolve(np.where(known, values, 0), ones, mode="same")
    count = np.convolve(known, ones, mode="same")
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _log_axis(ax: Axes, values: np.ndarray, scales: np.ndarray) -> None:
    """Set a log scale that includes every Λ and at most four decades of the singular values."""
    known = np.concatenate([values.ravel(), scales.ravel()])
    known = known[np.isfinite(known) & (known > 0)]
    if not known.size:
        return  # all zero, which a log axis cannot display
    floor = max(known.min(), 1e-4 * known.max())
    lambdas = scales[np.isfinite(scales) & (scales > 0)]
    ax.set_yscale("log")
    style.set_log_ticks(ax.yaxis)
    ax.set_ylim(0.7 * min([floor, *lambdas]), 1.6 * known.max())


def _panel_title(key: str) -> tuple[str, str]:
    """Return the title of a panel of :func:`training` and the unit of its vertical axis."""
    fixed = {
        "nll": ("negative log-likelihood", "nats per example"),
        "loss": ("loss: the sum of all terms", "nats per example"),
        "lr": ("learning rate", ""),
        "valid/accuracy": ("validation accuracy", ""),
        "valid/mcc": ("validation MCC", ""),
        "valid/nll": ("validation NLL", "nats per example"),
    }
    if key in fixed:
        return fixed[key]
    kind, site = key.split("/", 1)
    return f"{'KL' if kind == 'kl' else kind} {style.wrapped(site)}", "nats per example"
