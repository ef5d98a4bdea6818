"""The README's first figure from the demo's runs: ``python docs/first_figure.py [runs/demo]`` after
``make demo``.

It shows what KEP-SVGP predicts for one sure and three uncertain test images, and
how many of the accepted answers are wrong when each network answers only the corrupted images that
it is most confident of.
"""

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

from probattn.experiments.evaluation.evaluated_run import EvaluatedRun, read_evaluated_run
from probattn.experiments.plots import style
from probattn.experiments.runs.load import open_run
from probattn.inference import metrics

FIGURE = Path(__file__).parent / "figures" / "uncertain-digits.svg"
LAYERS = {
    "softmax": "softmax attention",
    "kep-svgp": "KEP-SVGP",
    "anchored": "anchored GP attention",
}
UNCERTAIN = 3


def main(demo: Path) -> None:
    """Draw the figure."""
    runs = {
        title: read_evaluated_run(demo / "digits" / layer / "seed-0")
        for layer, title in LAYERS.items()
    }
    figure = Figure(figsize=(style.WIDTH, 2.9), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(3, 2))
    draw_examples(left, runs[LAYERS["kep-svgp"]])
    draw_abstention(right, runs)
    style.save_figure(FIGURE, figure)


def draw_examples(figure: Figure, run: EvaluatedRun) -> None:
    """Draw the most certain test image and the most uncertain ones, each with its predicted
    probabilities."""
    prediction = run.predictions(["test"], "posterior")["test"]
    images = open_run(run.folder).dataset.test.images
    order = prediction.entropy.argsort()
    chosen = [int(order[0]), *order[-UNCERTAIN:].flip(0).tolist()]
    axes = figure.subplots(2, len(chosen), sharey="row")
    for (top, bottom), number in zip(axes.T, chosen, strict=True):
        label, probs = int(prediction.labels[number]), prediction.probs[number]
        top.imshow(images[number, 0], cmap="gray_r")
        top.set_title(
            f"a {label}: entropy {prediction.entropy[number]:.2f}",
            fontsize=style.SMALL,
            color=style.INK,
        )
        top.axis("off")
        colours = [style.BLUE if digit == label else style.ORANGE for digit in range(10)]
        bottom.bar(range(10), probs, color=colours)
        bottom.set(ylim=(0, 1), xticks=range(10), yticks=(0, 0.5, 1))
        bottom.tick_params(labelsize=style.SMALL - 1, colors=style.GREY, length=0)
        style.percent(bottom.yaxis)
        bottom.spines[["top", "right"]].set_visible(False)
        bottom.spines[["left", "bottom"]].set_color(style.PALE)
    title = "Predicted probabilities; blue is the true class"
    figure.suptitle(title, x=0.02, ha="left", fontsize=style.TEXT, color=style.INK)


def draw_abstention(figure: Figure, runs: dict[str, EvaluatedRun]) -> None:
    """Draw the error rate of the accepted answers against their share, over all corrupted
    images."""
    ax = figure.subplots()
    for number, (title, run) in enumerate(runs.items()):
        sets = [name for name in run.content["data"] if name.startswith("shift/")]
        predictions = run.predictions(sets, "posterior").values()
        probs, labels = (
            torch.cat([getattr(prediction, part) for prediction in predictions])
            for part in ("probs", "labels")
        )
        coverage, risk = metrics.risk_coverage(probs, labels)
        ax.plot(coverage, risk, color=style.line_colour(number), lw=1.8, label=title)
    ax.set(xlim=(0.5, 1.005), ylim=(0, None))
    ax.set_xlabel("share of corrupted images that are answered", **style.LABEL)
    ax.set_ylabel("share of answers that are wrong", **style.LABEL)
    ax.tick_params(labelsize=style.SMALL, colors=style.GREY)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(style.PALE)
    style.percent(ax.xaxis, ax.yaxis)
    ax.legend(frameon=False, fontsize=style.SMALL, labelcolor=style.INK)
    title = "What abstaining buys"
    figure.suptitle(title, x=0.02, ha="left", fontsize=style.TEXT, color=style.INK)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo"))
