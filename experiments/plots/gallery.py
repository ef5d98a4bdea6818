"""Images of single test examples with their predicted distributions."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from torch import Tensor

from probattn.experiments.plots import style

CLASSES = 10
"""Largest number of classes that are drawn: of more the most likely."""


def gallery(
    images: Tensor, probs: Tensor, labels: Tensor, classes: Sequence[str], *, numbers: Sequence[int]
) -> Figure | None:
    """Draw some images, each beside its probabilities: the true class blue, a wrong answer orange; None without any.

    Args:
        images: uint8 ``(n, channels, H, W)``; of other than three channels the first is grey.
        probs, labels: ``(n, classes)`` and ``(n,)``.
        classes: names.
        numbers: places of the drawn images.
    """
    if not numbers or not images.numel():
        return None
    figure, axes = style.panels(2 * len(numbers), columns=6, width=1.6, height=2.1)
    for left, right, number in zip(axes[::2], axes[1::2], numbers, strict=True):
        picture = images[number].permute(1, 2, 0).numpy()
        left.imshow(picture if picture.shape[2] == 3 else picture[..., 0], cmap="gray", vmin=0, vmax=255)
        left.set_axis_off()
        true, answer = int(labels[number]), int(probs[number].argmax())
        left.set_title(style.wrapped(f"true: {classes[true]}, answer: {classes[answer]}", 26), **style.TITLE)
        shown = sorted(probs[number].argsort(descending=True)[:CLASSES].tolist())
        colours = [style.BLUE if name == true else style.ORANGE if name == answer else style.PALE for name in shown]
        right.barh(range(len(shown)), probs[number][shown].tolist(), color=colours)
        right.set_yticks(range(len(shown)), [style.wrapped(classes[name], 14) for name in shown])
        right.set(xlim=(0, 1), ylim=(len(shown) - 0.4, -0.6), xticks=[0, 1])
        style.percent(right.xaxis)
    return figure
