"""Figures of what a network learned: its training, its attention, its tokens and its posterior.

Pure functions from numbers to a `matplotlib.figure.Figure` (object-oriented, so no display and no global
state), or to None where there is nothing to draw. `gallery` holds the figures of what a network answered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from torch import Tensor

# Okabe and Ito's palette: told apart with every common form of colour blindness, and in grey print.
BLUE, ORANGE, GREEN, PURPLE, SKY, AMBER = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
INK, GREY, PALE = "#222222", "#6b6b6b", "#d9d9d9"
LINES = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY, INK)
SMALL, TEXT, HEAD = 8, 9, 10  # points
SIZE = (3.7, 4.1)  # inches; three stand side by side on a wide screen
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")  # 0.3, never "1e-1 + 0.2" in a corner
PERCENT = FuncFormatter(lambda value, _: f"{100 * value:g}\u00a0%")
ROUND = [1, 2, 2.5, 5, 10]  # ticks that people count in
COLUMNS = 3


def training(steps: Sequence[Mapping], epochs: Sequence[Mapping]) -> Figure | None:
    """Every term of the objective in its own panel, and validation by epoch; None without a finite number.

    `steps` holds `step` and per-example terms in nats: `nll`, `kl/SITE`, `penalty/SITE`, `loss` and `lr`;
    `epochs` holds `epoch`, `valid/accuracy` and `valid/mcc` (fractions) and `valid/nll`. What is not finite is a gap.
    """
    keys = list(dict.fromkeys(key for row in steps for key in row))
    terms = [key for start in ("nll", "kl/", "penalty/", "loss", "lr") for key in keys if _is(key, start)]
    panels = [(steps, "step", key) for key in terms]
    panels += [(epochs, "epoch", key) for key in ("valid/accuracy", "valid/mcc", "valid/nll")]
    drawn = [(x, key, *series(rows, x, key)) for rows, x, key in panels]
    drawn = [panel for panel in drawn if np.isfinite(panel[3]).any()]
    if not drawn:
        return None
    figure, axes = grid(len(drawn), height=1.95)
    for ax, (x, key, at, values) in zip(axes, drawn, strict=True):
        _curve(ax, at, values, BLUE if x == "step" else GREEN, decades=key != "lr")
        title, unit = _panel_title(key)
        ax.set_title(title, fontsize=TEXT, loc="left", color=INK)
        ax.set_xlabel(x, fontsize=SMALL, color=GREY, labelpad=1)
        ax.set_ylabel(unit, fontsize=SMALL, color=GREY)
        if ax.get_yscale() == "linear":
            ax.yaxis.set_major_formatter(PERCENT if key in ("valid/accuracy", "valid/mcc") else PLAIN)
    return figure


def spectrum(spectra: Mapping[str, tuple[Tensor, Tensor]]) -> Figure | None:
    """Singular values of the attention kernel (a line per head, the mean bold) and the learned Λ (markers).

    `spectra` maps a layer's path to singular values (heads, N) and Λ (heads, s), both descending; layers without Λ
    (s = 0) are left out.
    """
    spectra = {layer: pair for layer, pair in spectra.items() if pair[1].numel()}
    if not spectra:
        return None
    figure, axes = grid(len(spectra), height=2.5)
    for number, (ax, (layer, pair)) in enumerate(zip(axes, spectra.items(), strict=True)):
        values, scales = (numbers(part) for part in pair)
        at = np.arange(1, values.shape[-1] + 1)
        for head, row in enumerate(values):
            label = "" if head else "singular values, per head"
            ax.plot(at, row, color=BLUE, alpha=0.5, lw=0.8, label=label)
        ax.plot(at, values.mean(axis=0), color=BLUE, lw=2, label="mean of the heads")
        for head, row in enumerate(scales):
            style = {"marker": "o", "ls": "", "ms": 4, "mfc": "none", "mec": ORANGE, "mew": 1}
            ax.plot(np.arange(1, len(row) + 1), row, label="" if head else "learned Λ, per head", **style)
        _log_axis(ax, values, scales)
        ax.set_title(short(layer), fontsize=TEXT, loc="left", color=INK)
        ax.set_xlabel("component", fontsize=SMALL, color=GREY, labelpad=1)
        ax.set_ylabel("singular value" if number % COLUMNS == 0 else "", fontsize=SMALL, color=GREY)
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper left", ncols=3, frameon=False, fontsize=SMALL)
    return figure


def spectrum_by_layer(spectra: Mapping[str, tuple[Tensor, Tensor]]) -> Figure | None:
    """The share of the sum of singular values in the first components, a line per layer (KEP-SVGP paper, Fig. 4c).

    `spectra` is as for `spectrum`; each head's cumulative values are divided by their sum, then averaged.
    """
    shares = {layer: _cumulative(numbers(values)) for layer, (values, _) in spectra.items()}
    shares = {layer: share for layer, share in shares.items() if np.isfinite(share).any()}
    if not shares:
        return None
    figure, ax = _lines(shares, x="component", y="cumulative share of the singular values")
    ax.axhline(0.95, color=INK, lw=1, ls="--", label="95 %")
    ax.set_ylim(0, 1.02)
    ax.yaxis.set_major_formatter(PERCENT)
    _legend(figure)
    return figure


def similarity(runs: Mapping[str, Mapping[str, float]]) -> Figure | None:
    """Mean cosine between the tokens behind each attention layer against depth, a line per run (CGP paper, Fig. III).

    `runs` maps a run's name to its layers in their order and their numbers; names are drawn only of several runs.
    """
    depths = {name: np.array(list(layers.values()), dtype=float) for name, layers in runs.items()}
    depths = {name: values for name, values in depths.items() if np.isfinite(values).any()}
    if not depths:
        return None
    figure, ax = _lines(depths, x="attention layer", y="mean cosine between tokens", marker="o", ms=3.5)
    low = min(np.nanmin(values) for values in depths.values())
    ax.set_ylim(min(0.0, 1.05 * low), 1.02)
    if len(depths) > 1:
        _legend(figure)
    return figure


def posterior(sites: Sequence[Mapping]) -> Figure | None:
    """For each site, KL(q ‖ prior) in nats per scalar, and the posterior's spread over the prior's.

    A row holds `site`, `kl` (nats), `size` (scalars), `prior_std` and `posterior_std`.
    """
    if not sites:
        return None
    figure = Figure(figsize=(9.6, 1.1 + 0.34 * len(sites)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    rows = np.arange(len(sites))
    density = np.array([ratio(row["kl"], row["size"]) for row in sites])
    spread = np.array([ratio(row["posterior_std"], row["prior_std"]) for row in sites])
    for ax, widths, colour in ((left, density, BLUE), (right, spread, SKY)):
        plain(ax)
        bars = ax.barh(rows, np.nan_to_num(widths, posinf=0, neginf=0), height=0.62, color=colour)
        labels = [f"{width:.3g}" if math.isfinite(width) else "–" for width in widths]
        ax.bar_label(bars, labels, padding=3, fontsize=SMALL, color=INK)
        top = max([float(width) for width in widths if math.isfinite(width)], default=0.0)
        ax.set_xlim(0, 1.18 * max(top, 1.0 if ax is right else 0.0) or 1.0)
        ax.xaxis.set_major_formatter(PLAIN)
    right.axvline(1, color=INK, lw=1, ls="--")
    left.set_yticks(rows, [short(row["site"]) for row in sites], fontsize=SMALL)
    left.invert_yaxis()
    left.set_title("KL from the prior (nats per scalar)", fontsize=TEXT, loc="left", color=INK)
    right.set_title("posterior std / prior std (dashed: as the prior)", fontsize=TEXT, loc="left", color=INK)
    return figure


def grid(count: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` quiet panels, three to a row, each `height` inches high."""
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(9.6 * max(columns, 2) / COLUMNS, height * rows + 0.3), layout="constrained")
    axes = [figure.add_subplot(rows, columns, place + 1) for place in range(count)]
    for ax in axes:
        plain(ax)
    return figure, axes


def plain(ax: Axes) -> None:
    """Take the frame off `ax` and make its ticks small and grey."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(PALE)
    ax.tick_params(labelsize=SMALL, colors=GREY, color=PALE, length=3)
    ax.set_axisbelow(True)


def numbers(values: Tensor) -> np.ndarray:
    """Return a tensor of any device and precision as float64."""
    return values.detach().cpu().double().numpy()


def ratio(above: float, below: float) -> float:
    """Return above / below, NaN where the ratio means nothing."""
    return float(above) / float(below) if below else math.nan


def short(path: str, limit: int = 30) -> str:
    """Shorten a path or a name to `limit` characters by its middle, spelled so that it is drawn as it is.

    Beginning and end say the most. A $ would start a formula, and a legend hides what starts with _.
    """
    path = path.removeprefix("network.")
    if len(path) > limit:
        path = path[: limit // 3] + "…" + path[-(limit - limit // 3 - 1) :]
    path = path.replace("$", r"\$")
    return f" {path}" if path.startswith("_") else path


def series(rows: Sequence[Mapping], x: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return columns `x` and `key` of the rows that have both; what is not finite becomes NaN, a gap."""
    pairs = [(float(row[x]), float(row[key])) for row in rows if key in row and x in row]
    at, values = np.array(pairs, dtype=float).reshape(-1, 2).T
    return at, np.where(np.isfinite(values), values, np.nan)


def _lines(rows: Mapping[str, np.ndarray], *, x: str, y: str, **style: object) -> tuple[Figure, Axes]:
    """Draw each row against 1, 2, … in a colour, or dashes of it, of its own."""
    figure = Figure(figsize=(SIZE[0], SIZE[1] + 0.17 * len(rows)), layout="constrained")
    ax = figure.subplots()
    plain(ax)
    for number, (name, row) in enumerate(rows.items()):
        dashes = ("-", "--", ":", "-.")[number // len(LINES) % 4]
        look = {"color": LINES[number % len(LINES)], "ls": dashes, "lw": 1.6, "label": short(name, limit=45)}
        ax.plot(np.arange(1, len(row) + 1), row, **look, **style)
    ax.set_xlabel(x, fontsize=SMALL, color=GREY, labelpad=1)
    ax.set_ylabel(y, fontsize=SMALL, color=GREY)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=ROUND))
    return figure, ax


def _legend(figure: Figure) -> None:
    figure.legend(loc="outside lower center", frameon=False, fontsize=SMALL)


def _cumulative(values: np.ndarray) -> np.ndarray:
    """Return the mean over heads (heads, N) of cumulative sums over their totals; a head of zeros is left out."""
    total = values.sum(axis=-1, keepdims=True)
    rows = (values.cumsum(axis=-1) / np.where(total > 0, total, np.nan))[total[:, 0] > 0]
    return rows.mean(axis=0) if len(rows) else np.full(values.shape[-1], np.nan)


def _curve(ax: Axes, at: np.ndarray, values: np.ndarray, colour: str, *, decades: bool) -> None:
    """Draw every point; where there are many, pale under their moving mean; on a log scale over `decades`."""
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
        ax.yaxis.set_major_locator(MaxNLocator(4, steps=ROUND))
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=ROUND))
    if len(set(at)) == 1:
        ax.set_xticks(at[:1])
    ax.xaxis.set_major_formatter(PLAIN)


def _moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over the finite values within `window` points around each; shorter at both ends."""
    known = np.isfinite(values)
    ones = np.ones(window)
    total = np.convolve(np.where(known, values, 0), ones, mode="same")
    count = np.convolve(known, ones, mode="same")
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _log_axis(ax: Axes, values: np.ndarray, scales: np.ndarray) -> None:
    """Use a log scale that shows every Λ, and of the singular values four decades at most."""
    known = np.concatenate([values.ravel(), scales.ravel()])
    known = known[np.isfinite(known) & (known > 0)]
    if not known.size:
        return  # all zero: a linear axis shows that, a log axis could not
    floor = max(known.min(), 1e-4 * known.max())
    lambdas = scales[np.isfinite(scales) & (scales > 0)]
    ax.set_yscale("log")
    ax.set_ylim(0.7 * min([floor, *lambdas]), 1.6 * known.max())


def _is(key: str, start: str) -> bool:
    return key.startswith(start) if start.endswith("/") else key == start


def _panel_title(key: str) -> tuple[str, str]:
    """Return a panel's title and the unit of its vertical axis."""
    fixed = {
        "nll": ("negative log-likelihood", "nats per example"),
        "loss": ("loss: the sum of all terms", "nats per example"),
        "lr": ("learning rate", ""),
        "valid/accuracy": ("validation accuracy", ""),
        "valid/nll": ("validation NLL", "nats per example"),
    }
    if key in fixed:
        return fixed[key]
    kind, site = key.split("/", 1)
    return f"{'KL' if kind == 'kl' else kind} {short(site)}", "nats per example"
