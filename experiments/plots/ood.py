"""Confidence on out-of-distribution (OOD) images against that of right and wrong answers (KEP-SVGP paper, Fig. 3)."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from probattn.experiments.plots import style
from probattn.inference import Prediction
from probattn.inference.metrics import ood

BINS = np.linspace(0, 1, 21)


def confidence(test: Prediction, ood_sets: Mapping[str, Prediction]) -> Figure | None:
    """Draw histograms of the confidence on right, wrong and OOD examples, normalised by group; a panel per OOD set.

    The title of a panel has the AUROC of detecting the OOD set by confidence.

    Args:
        test: predictions of the test set, with labels.
        ood_sets: predictions by OOD set.
    """
    if not ood_sets:
        return None
    figure, axes = style.panel_grid(len(ood_sets), height=2.3)
    for ax, (name, each) in zip(axes, ood_sets.items(), strict=True):
        _panel(ax, test, each, title=style.wrapped(name, 26))
    top = max(ax.get_ylim()[1] for ax in axes)
    for number, ax in enumerate(axes):
        ax.set(xlim=(0, 1), ylim=(0, top), xticks=np.linspace(0, 1, 5))
        style.percent(ax.xaxis, ax.yaxis)
        if number >= len(axes) - style.COLUMNS:
            ax.set_xlabel("confidence")
        if number % style.COLUMNS == 0:
            ax.set_ylabel("share of each group")
    handles = [
        Line2D([], [], color=style.BLUE, lw=1.6, label="right answers"),
        Line2D([], [], color=style.ORANGE, lw=1.6, ls="--", label="wrong answers"),
        Patch(color=style.PURPLE, alpha=0.45, lw=0, label="OOD examples"),
    ]
    style.legend(figure, most=3, handles=handles)
    return figure


def _panel(ax: Axes, test: Prediction, ood_set: Prediction, *, title: str) -> None:
    right = style.to_numpy(test.probs.argmax(-1) == test.labels) > 0
    # rounding may lift a confidence above 1
    known, unknown = (style.to_numpy(each.probs.amax(-1)).clip(max=1) for each in (test, ood_set))
    groups = {
        "OOD": (unknown, {"histtype": "stepfilled", "color": style.PURPLE, "alpha": 0.45}),
        "right": (known[right], {"histtype": "step", "color": style.BLUE, "lw": 1.6}),
        "wrong": (known[~right], {"histtype": "step", "color": style.ORANGE, "lw": 1.6, "ls": "--"}),
    }
    for values, look in groups.values():
        if len(values):
            ax.hist(values, bins=BINS, weights=np.full(len(values), 1 / len(values)), **look)
    auroc = ood.detection_metrics(-test.confidence, -ood_set.confidence)["auroc"]
    counts = ", ".join(f"{len(values):,} {name}" for name, (values, _) in groups.items())
    ax.set_title(f"{title}: AUROC {100 * auroc:.1f}\u00a0%\n{counts}", **style.TITLE)
