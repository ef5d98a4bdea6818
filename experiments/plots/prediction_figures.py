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
BOX: style.Look = {"showcaps": False, "patch_artist": True, "whis": (0, 100), "manage_ticks": False}
EXAMPLES = 200
"""Largest number of predicted numbers that are drawn."""


def reliability(prediction: Prediction) -> Figure:
    """Draw accuracy against confidence in 15 bins, the gap to the mean confidence hatched, and the
    counts below."""
    confidence, right = (
        values.numpy() for values in metrics.confidence_and_correct(*labelled_classes(prediction))
    )
    bins = np.digitize(
        confidence, np.linspace(0, 1, BINS + 1)[1:-1]
    )  # [a, b), and 1 in the last one
    full, bins, count = np.unique(bins, return_inverse=True, return_counts=True)
    accuracy, mean = (np.bincount(bins, weights=values) / count for values in (right, confidence))
    middle, width = (full + 0.5) / BINS, 0.94 / BINS
    figure, (top, below) = style.panels(
        2, columns=1, width=4.6, height=1.75, height_ratios=(3, 1), sharex=True
    )
    top.bar(middle, accuracy, width, color=style.SKY, label="accuracy")
    look: style.Look = {"facecolor": "none", "edgecolor": style.ORANGE, "hatch": "////", "lw": 1}
    top.bar(middle, mean - accuracy, width, bottom=accuracy, label="gap to confidence", **look)
    top.plot([0, 1], [0, 1], color=style.INK, lw=1, ls="--", label="perfect")
    top.set(ylim=(0, 1.02), ylabel="accuracy")
    below.bar(middle, count, width, color=style.GREY)
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
    figure, (ax,) = style.panels(width=4.6, height=3.5)
    top = 0.0
    for number, (name, run) in enumerate(runs.items()):
        coverage, risk = (
            values.numpy() for values in metrics.risk_coverage(*labelled_classes(run))
        )
        colour = style.line_colour(number)
        ax.plot(coverage, risk, color=colour, lw=1.8, label=style.wrapped(name, 56))
        ideal = np.clip(1 - metrics.accuracy(*labelled_classes(run)) / coverage, 0, None)
        ax.plot(coverage, ideal, color=colour, lw=1, ls="--")
        top = max(
            top, risk[len(risk) // 20 :].max()
        )  # the first few answers alone jump between 0 and 1
    ax.plot([], [], color=style.INK, lw=1, ls="--", label="best possible at this accuracy")
    ax.set(xlim=(0, 1.01), xlabel="coverage: share of answers accepted, the most confident first")
    ax.set(
        ylim=(-0.02 * (top or 0.1), 1.12 * top or 0.1), ylabel="risk: share of these that are wrong"
    )
    style.percent(ax.xaxis, ax.yaxis)
    style.legend(figure, columns=2 if len(runs) == 1 else 1)
    return figure


def confusion(counts: pd.DataFrame) -> Figure:
    """Draw the number of examples of each true class (row) by answer (column), shaded by their
    share of the row."""
    matrix, count = counts.to_numpy(), len(counts)
    figure, (ax,) = style.panels(width=2 + 0.3 * max(count, 6), height=1.2 + 0.28 * max(count, 6))
    for row, column in np.argwhere(matrix):
        share = matrix[row, column] / matrix[row].sum()
        colour = style.BLUE if row == column else style.ORANGE
        ax.bar(column, 1, 1, bottom=row - 0.5, color=colour, alpha=0.08 + 0.5 * share, lw=0)
        ax.text(
            column,
            row,
            str(matrix[row, column]),
            fontsize=style.SMALL,
            color=style.INK,
            ha="center",
            va="center",
        )
    names = [style.wrapped(name, 24).partition("\n")[0] for name in counts]
    ax.set_xticks(
        range(count), names, rotation=90 if max(map(len, names)) > 4 * max(count, 6) / count else 0
    )
    ax.set_yticks(range(count), names)
    ax.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5), xlabel="answer", ylabel="true class")
    return figure


def ood_confidence(test: Prediction, ood_sets: Mapping[str, Prediction]) -> Figure:
    """Draw the confidence on right, wrong and OOD examples, each group as shares; a panel per OOD
    set with its AUROC.

    Args:
        test: predictions of the test set, with labels.
        ood_sets: predictions by OOD set.
    """
    figure, axes = style.panels(len(ood_sets), width=3.2, height=2.1, sharey=True)
    right = test.predicted == test.require("labels")
    for ax, (name, unknown) in zip(axes, ood_sets.items(), strict=True):
        groups = (unknown.confidence, test.confidence[right], test.confidence[~right])
        shares = [np.full(len(values), 1 / max(len(values), 1)) for values in groups]
        look: style.Look = {
            "color": (style.PURPLE, style.BLUE, style.ORANGE),
            "label": ("OOD", "right", "wrong"),
        }
        values = [values.clamp(max=1).tolist() for values in groups]
        ax.hist(
            values, np.linspace(0, 1, 21).tolist(), weights=shares, histtype="step", lw=1.6, **look
        )
        auroc = ood.detection_metrics(-test.confidence, -unknown.confidence)["auroc"]
        ax.set_title(f"{style.wrapped(name, 26)}: AUROC {100 * auroc:.1f}\u00a0%", **style.TITLE)
        ax.set(xlim=(0, 1), xlabel="confidence")
        style.percent(ax.xaxis, ax.yaxis)
    axes[0].set_ylabel("share of each group")
    style.legend(figure)
    return figure


def boxes(runs: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure | None:
    """Draw a box of every run's accuracy over the severities of each corruption (KEP-SVGP paper,
    Fig. 2).

    Boxes are quartiles, and whiskers reach to the smallest and the largest value.

    Args:
        runs: name → ``CORRUPTION/SEVERITY`` → metrics, unscaled.

    Returns:
        The figure, or None without runs on corrupted images.
    """
    rows = [
        (run, name.split("/")[0], row["accuracy"])
        for run, shift in runs.items()
        for name, row in shift.items()
    ]
    if not rows:
        return None
    frame = pd.DataFrame(rows, columns=["run", "corruption", "value"])
    frame["value"] *= ACCURACY.scale
    names, groups = list(frame["corruption"].unique()), frame.groupby("run", sort=False)
    figure, (ax,) = style.panels(width=style.WIDTH, height=2.6)
    width = 0.8 / len(groups)
    for number, (label, of_run) in enumerate(groups):
        colour = style.line_colour(number)
        values = of_run.groupby("corruption", sort=False)["value"].apply(list)
        places = [names.index(name) + width * (number + 0.5) - 0.4 for name in values.index]
        ink, fill = {"color": style.INK, "lw": 0.8}, {"facecolor": colour, "edgecolor": colour}
        look: style.Look = {"medianprops": ink, "whiskerprops": ink, "boxprops": fill}
        ax.boxplot(list(values), positions=places, widths=0.8 * width, **BOX, **look)
        ax.plot([], [], color=colour, lw=5, label=style.wrapped(label, 40))
    ax.set_xticks(range(len(names)), [style.wrapped(name.replace("_", " "), 12) for name in names])
    ax.tick_params(axis="x", rotation=45 if len(names) > 8 else 0, length=0)
    ax.set(xlim=(-0.5, len(names) - 0.5), ylabel=heading(ACCURACY))
    style.legend(figure, columns=4)
    return figure


def predicted(prediction: Prediction) -> Figure:
    """Draw mean and central 90 % interval of each prediction against the true number, of many
    examples some."""
    chosen = torch.linspace(0, len(prediction) - 1, min(EXAMPLES, len(prediction))).round().long()
    drawn_values = (
        *regression.interval(prediction, 0.9),
        prediction.require("labels"),
        prediction.predicted,
    )
    low, high, truth, mean = (
        values[chosen].flatten().cpu().double().numpy() for values in drawn_values
    )
    figure, (ax,) = style.panels(width=4.6, height=3.5)
    ax.vlines(truth, low, high, color=style.SKY, lw=1, label="90 % interval")
    ax.plot(truth, mean, ls="", marker="o", ms=3, color=style.BLUE, label="mean")
    ends = [min(truth.min(), low.min()), max(truth.max(), high.max())]
    ax.plot(ends, ends, color=style.INK, lw=1, ls="--", label="perfect")
    ax.set(xlabel="true number", ylabel="prediction")
    style.legend(figure)
    return figure


def quantiles(prediction: Prediction) -> Figure:
    """Draw the share of true numbers below each predicted quantile."""
    levels = regression.QUANTILE_LEVELS
    shares = regression.shares_below(prediction, prediction.require("labels"), levels)
    figure, (ax,) = style.panels(width=4.6, height=3.5)
    ax.plot([0, 1], [0, 1], color=style.INK, lw=1, ls="--", label="calibrated")
    ax.plot(levels.tolist(), shares.flatten().tolist(), color=style.BLUE, label="this run")
    ax.set(
        xlim=(0, 1),
        ylim=(0, 1),
        xlabel="level of the quantile",
        ylabel="share of true numbers below",
    )
    style.percent(ax.xaxis, ax.yaxis)
    style.legend(figure)
    return figure
