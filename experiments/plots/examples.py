"""Single examples with their predicted distributions: the most uncertain and the most confidently wrong ones."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from probattn.experiments.plots import style

MOST, MOST_LIKELY = 10, 5
"""Largest number of classes that are all drawn, and number of those drawn of more."""


def most_uncertain(probs: Tensor, count: int = 12) -> list[int]:
    """Return the indices of the highest predictive entropies, highest first; ties in the order of the data."""
    entropy = torch.special.entr(probs.double()).sum(-1)
    return entropy.sort(descending=True, stable=True).indices[:count].tolist()


def most_confidently_wrong(probs: Tensor, labels: Tensor, count: int = 12) -> list[int]:
    """Return the indices of the most confident wrong answers, highest first; ties in the order of the data."""
    value, answer = probs.max(-1)
    wrong = (answer != labels).nonzero()[:, 0]
    return wrong[value[wrong].sort(descending=True, stable=True).indices][:count].tolist()


def gallery(
    images: Tensor, probs: Tensor, labels: Tensor, classes: Sequence[str], indices: Sequence[int]
) -> Figure | None:
    """Draw images, uint8 ``(n, channels, H, W)``, at ``indices``, each with its predicted distribution.

    The true class is blue, a wrong answer orange; of more than ten classes only the five most likely are drawn.
    """

    def draw(ax: Axes, index: int) -> None:
        picture = images[index].cpu().numpy()
        if len(picture) == 3:
            ax.imshow(picture.transpose(1, 2, 0), interpolation="nearest")
        else:  # one channel is grey; of any other number of channels the first is drawn
            ax.imshow(picture[0], cmap="gray", vmin=0, vmax=255, interpolation="nearest")

    return _draw_examples(draw, probs, labels, classes, indices) if images.numel() else None


def excerpts(
    texts: Sequence[str], probs: Tensor, labels: Tensor, classes: Sequence[str], indices: Sequence[int]
) -> Figure | None:
    """Draw the beginnings of the texts at ``indices``, each with its predicted distribution as in :func:`gallery`."""

    def draw(ax: Axes, index: int) -> None:
        passage = textwrap.fill(textwrap.shorten(texts[index], 150, placeholder=" …"), 24, break_on_hyphens=False)
        look = {"fontsize": style.SMALL, "color": style.INK, "va": "center"}
        ax.text(0, 0.5, style.literal(passage), transform=ax.transAxes, **look)

    return _draw_examples(draw, probs, labels, classes, indices) if texts else None


def _draw_examples(
    draw: Callable[[Axes, int], None],
    probs: Tensor,
    labels: Tensor,
    classes: Sequence[str],
    indices: Sequence[int],
) -> Figure | None:
    if not len(indices):
        return None
    columns = min(style.COLUMNS, len(indices))
    rows = -(-len(indices) // columns)
    lines = max(_name(classes, at).count("\n") + 1 for at in range(len(classes)))
    height = max(1.75, 0.6 + 0.14 * lines * (len(classes) if len(classes) <= MOST else MOST_LIKELY))
    figure = Figure(figsize=(3.2 * columns, height * rows), layout="constrained")
    cells = np.atleast_1d(figure.subfigures(rows, columns, squeeze=False).ravel())
    for cell, index in zip(cells, indices, strict=False):
        left, right = cell.subplots(1, 2, width_ratios=(1, 1.05))
        draw(left, index)
        left.set_axis_off()
        row, true = style.to_numpy(probs[index]), int(labels[index])
        _bars(right, row, true, classes)
        title = f"true: {classes[true]}, predicted: {classes[int(row.argmax())]}"
        cell.suptitle(style.wrapped(title, 42), fontsize=style.TEXT, color=style.INK)
    return figure


def _bars(ax: Axes, row: np.ndarray, true: int, classes: Sequence[str]) -> None:
    """Draw the probabilities of one prediction."""
    drawn = np.arange(len(row)) if len(row) <= MOST else np.argsort(-row, kind="stable")[:MOST_LIKELY]
    answer = int(row.argmax())
    colours = [style.BLUE if at == true else style.ORANGE if at == answer else style.PALE for at in drawn]
    ax.barh(np.arange(len(drawn)), row[drawn], color=colours, height=0.8)
    ax.set_yticks(np.arange(len(drawn)), [_name(classes, at) for at in drawn])
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xticks([0, 1])
    style.percent(ax.xaxis)
    style.tidy(ax)


def _name(classes: Sequence[str], at: int) -> str:
    return style.wrapped(str(classes[at]), 16)
