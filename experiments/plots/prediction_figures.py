"""Predictions of a run: reliability, risk and coverage, confusion, OOD data, corruptions; of
numbers their intervals.

Predictions have labels; the confidence is the largest probability, the answer its class.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from probattn.experiments.evaluation.metric_display import heading
from probattn.experiments.plots import style
from probattn.inference import Prediction, metrics
from probattn.inference.metrics import ood, regression
from probattn.inference.prediction.predictor import labelled_classes

ACCURACY = metrics.OF_CLASSES["accuracy"]
BINS = 15
EXAMPLES = 200
"""Largest number of predicted numbers that are drawn."""


def reliability(prediction: Prediction) -> Figure:
    """Draw accuracy against confidence in 15 bins, the gap to the mean confidence hatched, and the
    counts below."""
    confidence, right = metrics.confidence_and_correct(*labelled_classes(prediction))
    frame = pd.DataFrame({"confidence": confidence, "accuracy": right})
    # [a, b), and 1 in the last one
    places = np.digitize(confidence, np.linspace(0, 1, BINS + 1)[1:-1])
    bins = frame.groupby(places)
    means, counts = bins.mean(), bins.size()
    middle = (means.index + 0.5) / BINS
    width = 0.94 / BINS
    gap = means["confidence"] - means["accuracy"]
    look: style.Look = {"facecolor": "none", "edgecolor": style.ORANGE, "hatch": "////", "lw": 1}
    figure, (top, below) = style.panels(
        2,
        columns=1,
        height=1.75,
        height_ratios=(3, 1),
        sharex=True,
    )
    top.bar(
        middle,
        means["accuracy"],
        width,
        color=style.SKY,
        label="accuracy",
    )
    top.bar(
        middle,
        gap,
        width,
        bottom=means["accuracy"],
        label="gap to confidence",
        **look,
    )
    style.diagonal(top, "perfect")
    top.set(ylim=(0, 1.02), ylabel="accuracy")
    below.bar(middle, counts, width, color=style.GREY)
    below.set(xlim=(0, 1), xlabel="confidence", ylabel="answers")
    style.whole_numbers(below.yaxis, 3)
    style.percent(top.xaxis, top.yaxis)
    style.legend(figure)
    return figure


def risk_coverage(runs: Mapping[str, Prediction]) -> Figure:
    """Draw the error rate of the accepted answers against the share accepted, the most confident
    first.

    The best possible order of each run's answers is dashed.

    Args:
        runs: name → prediction.
    """
    figure, (ax,) = style.panels()
    top = 0.0
    for number, (name, run) in enumerate(runs.items()):
        classes = labelled_classes(run)
        coverage, risk = metrics.risk_coverage(*classes)
        best = (1 - metrics.accuracy(*classes) / coverage).clamp(min=0)  # all errors last
        colour = style.line_colour(number)
        ax.plot(
            coverage,
            risk,
            color=colour,
            lw=1.8,
            label=style.wrapped(name, 56),
        )
        ax.plot(coverage, best, color=colour, lw=1, ls="--")
        few = len(risk) // 20  # the first answers alone jump between 0 and 1
        top = max(top, float(risk[few:].max()))
    if top == 0:
        top = 0.1
    ax.plot([], [], label="best possible at this accuracy", **style.REFERENCE)
    ax.set(xlim=(0, 1.01), xlabel="coverage: share of answers accepted, the most confident first")
    ax.set(ylim=(-0.02 * top, 1.12 * top), ylabel="risk: share of these that are wrong")
    style.percent(ax.xaxis, ax.yaxis)
    style.legend(figure, columns=2 if len(runs) == 1 else 1)
    return figure


def confusion(counts: pd.DataFrame) -> Figure:
    """Draw the number of examples of each true class (row) by answer (column), shaded by their
    share of the row."""
    matrix = counts.to_numpy()
    classes = len(counts)
    size = max(classes, 6)
    look: style.Look = {"fontsize": style.SMALL, "color": style.INK, "ha": "center", "va": "center"}
    figure, (ax,) = style.panels(width=2 + 0.3 * size, height=1.2 + 0.28 * size)
    for row, column in np.argwhere(matrix):
        number = matrix[row, column]
        shade = 0.08 + 0.5 * number / matrix[row].sum()
        colour = style.BLUE if row == column else style.ORANGE
        ax.bar(
            column,
            1,
            1,
            bottom=row - 0.5,
            color=colour,
            alpha=shade,
            lw=0,
        )
        ax.text(column, row, str(number), **look)
    names = [style.wrapped(name, 24).partition("\n")[0] for name in counts]
    has_room = max(map(len, names)) <= 4 * size / classes
    ax.set_xticks(range(classes), names, rotation=0 if has_room else 90)
    ax.set_yticks(range(classes), names)
    ends = (-0.5, classes - 0.5)
    ax.set(
        xlim=ends,
        ylim=ends[::-1],
        xlabel="answer",
        ylabel="true class",
    )
    return figure


def ood_confidence(test: Prediction, ood_sets: Mapping[str, Prediction]) -> Figure:
    """Draw the confidence on right, wrong and OOD examples, each group as shares; a panel per OOD
    set with its AUROC.

    Args:
        test: predictions of the test set, with labels.
        ood_sets: predictions by OOD set.
    """
    look: style.Look = {
        "color": (style.PURPLE, style.BLUE, style.ORANGE),
        "label": ("OOD", "right", "wrong"),
        "histtype": "step",
        "lw": 1.6,
    }
    edges = np.linspace(0, 1, 21).tolist()
    figure, axes = style.panels(
        len(ood_sets),
        width=3.2,
        height=2.1,
        sharey=True,
    )
    right = test.predicted == test.require("labels")
    for ax, (name, unknown) in zip(axes, ood_sets.items(), strict=True):
        groups = (unknown.confidence, test.confidence[right], test.confidence[~right])
        values = [group.clamp(max=1).tolist() for group in groups]
        shares = [np.full(len(group), 1 / max(len(group), 1)) for group in groups]
        ax.hist(values, edges, weights=shares, **look)
        auroc = ood.detection_metrics(-test.confidence, -unknown.confidence)["auroc"]
        ax.set_title(f"{style.wrapped(name, 26)}: AUROC {100 * auroc:.1f}\u00a0%", **style.TITLE)
        ax.set(xlim=(0, 1), xlabel="confidence")
        style.percent(ax.xaxis, ax.yaxis)
    axes[0].set_ylabel("share of each group")
    style.legend(figure)
    return figure


def boxes(runs: Mapping[str, pd.DataFrame]) -> Figure | None:
    """Draw a box of every run's accuracy over the severities of each corruption (KEP-SVGP paper,
    Fig. 2).

    Boxes are quartiles, and whiskers reach to the smallest and the largest value.

    Args:
        runs: name → scores by ``CORRUPTION/SEVERITY``, unscaled.

    Returns:
        The figure, or None without runs on corrupted images.
    """
    # run → corruption → its values at all severities, in the unit of the axis
    values = {}
    for run, shift in runs.items():
        if len(shift):
            corruptions = [name.partition("/")[0] for name in shift.index]
            accuracy = ACCURACY.scale * shift["accuracy"]
            values[run] = accuracy.groupby(corruptions, sort=False).agg(list)
    if not values:
        return None
    names = pd.concat(values).index.unique(1)
    width = 0.8 / len(values)
    figure, (ax,) = style.panels(width=style.WIDTH, height=2.6)
    for number, (run, of_run) in enumerate(values.items()):
        colour = style.line_colour(number)
        middle = width * (number + 0.5) - 0.4
        ax.boxplot(
            list(of_run),
            positions=names.get_indexer(of_run.index) + middle,
            widths=0.8 * width,
            whis=(0, 100),
            showcaps=False,
            patch_artist=True,
            manage_ticks=False,
            medianprops={"color": style.INK, "lw": 0.8},
            whiskerprops={"color": style.INK, "lw": 0.8},
            # The edge is all that is seen of a box of one severity.
            boxprops={"facecolor": colour, "edgecolor": colour, "lw": 3.0},
        )
        ax.plot(
            [],
            [],
            color=colour,
            lw=5,
            label=style.wrapped(run, 40),
        )
    ticks = [style.wrapped(name.replace("_", " "), 12) for name in names]
    ax.set_xticks(range(len(names)), ticks)
    ax.tick_params(
        axis="x",
        rotation=45 if len(names) > 8 else 0,
        length=0,
    )
    ax.set(xlim=(-0.5, len(names) - 0.5), ylabel=heading(ACCURACY))
    style.legend(figure, columns=4)
    return figure


def predicted(prediction: Prediction) -> Figure:
    """Draw mean and central 90 % interval of each prediction against the true number, of many
    examples some."""
    count = len(prediction)
    chosen = torch.linspace(0, count - 1, min(EXAMPLES, count)).round().long()
    # Of each output of a chosen example: ends of the interval, truth and mean.
    low, high = (
        ends[chosen].flatten().cpu() for ends in regression.interval(prediction, level=0.9)
    )
    truth = prediction.require("labels")[chosen].flatten().cpu()
    mean = prediction.predicted[chosen].flatten().cpu()
    figure, (ax,) = style.panels()
    ax.vlines(
        truth,
        low,
        high,
        color=style.SKY,
        lw=1,
        label="90 % interval",
    )
    ax.plot(
        truth,
        mean,
        ls="",
        marker="o",
        ms=3,
        color=style.BLUE,
        label="mean",
    )
    style.diagonal(ax, "perfect", through=float(truth[0]))
    ax.set(xlabel="true number", ylabel="prediction")
    style.legend(figure)
    return figure


def quantiles(prediction: Prediction) -> Figure:
    """Draw the share of true numbers below each predicted quantile."""
    levels = regression.QUANTILE_LEVELS
    shares = regression.shares_below(prediction, prediction.require("labels"), levels)
    figure, (ax,) = style.panels()
    style.diagonal(ax, "calibrated")
    ax.plot(
        levels,
        shares.flatten().cpu(),
        color=style.BLUE,
        label="this run",
    )
    ax.set(xlim=(0, 1), xlabel="level of the quantile")
    ax.set(ylim=(0, 1), ylabel="share of true numbers below")
    style.percent(ax.xaxis, ax.yaxis)
    style.legend(figure)
    return figure
