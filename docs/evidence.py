"""Figure of *When does it help?* from the committed results: ``python docs/evidence.py`` writes it to ``docs/figures``.

Needs the extra ``cli``.
"""

import csv
import math
from pathlib import Path

from probattn.experiments.evaluation.metric_display import DISPLAY
from probattn.experiments.evaluation.seed_statistics import Cell, Comparison
from probattn.experiments.plots.differences import differences
from probattn.experiments.plots.svg import save_figure

FIGURE = Path(__file__).parent / "figures" / "differences-from-softmax.svg"
RESULTS = Path(__file__).parents[1] / "experiments" / "results"
METRICS = ("accuracy", "nll", "ece", "aurc")
WITH_GP = "(layer.mean=softmax, layer.amplitude=1.0, layer.guide_scale=1.0)"
TEMPERATURE = " + temperature scaling"
ROWS = {
    "IMDB: KEP-SVGP": ("imdb/differences.csv", "kep-svgp/imdb"),
    f"IMDB: KEP-SVGP{TEMPERATURE}": ("imdb/differences.csv", f"kep-svgp/imdb{TEMPERATURE}"),
    "CIFAR-10: KEP-SVGP": ("cifar10-30-epochs/test.csv", "kep-svgp/cifar10"),
    f"CIFAR-10: KEP-SVGP{TEMPERATURE}": ("cifar10-30-epochs/test.csv", f"kep-svgp/cifar10{TEMPERATURE}"),
    "CIFAR-10: softmax plus GP": ("cifar10-30-epochs/test.csv", f"kep-svgp/cifar10 {WITH_GP}"),
    f"CIFAR-10: softmax plus GP{TEMPERATURE}": (
        "cifar10-30-epochs/test.csv",
        f"kep-svgp/cifar10 {WITH_GP}{TEMPERATURE}",
    ),
    f"CoLA, fine-tuned: KEP-SVGP{TEMPERATURE}": ("finetune-cola/test.csv", f"finetune/cola{TEMPERATURE}"),
    f"CoLA, fine-tuned: softmax plus GP{TEMPERATURE}": (
        "finetune-cola/test.csv",
        f"finetune/cola {WITH_GP}{TEMPERATURE}",
    ),
    f"CoLA, fine-tuned: sparse CGP{TEMPERATURE}": ("finetune-cola/test.csv", f"finetune/cola-sparse{TEMPERATURE}"),
    "digits: KEP-SVGP": ("digits/test.csv", "digits/kep-svgp"),
    "digits: sparse CGP": ("digits/test.csv", "digits/sparse-cgp"),
    "corrupted digits: KEP-SVGP": ("digits/shift.csv", "digits/kep-svgp"),
    "corrupted digits: sparse CGP": ("digits/shift.csv", "digits/sparse-cgp"),
}
"""Row of the figure → file and row of the results."""


def comparison() -> Comparison:
    """Return the differences of :data:`ROWS` from softmax attention by the same method.

    Raises:
        ValueError: a row that is compared with another baseline, or over another number of seeds than five.
    """
    cells, baselines = {}, {}
    for label, (name, row) in ROWS.items():
        with (RESULTS / name).open(encoding="utf-8", newline="") as file:
            lines = {line["metric"]: line for line in csv.DictReader(file) if line["row"] == row}
        (baseline,) = {lines[metric]["baseline"] for metric in METRICS}
        layer, _, method = baseline.partition(" + ")
        if not layer.endswith("softmax") or method != row.partition(" + ")[2]:
            raise ValueError(f"{row} of {name} is compared with {baseline!r}, not with softmax by the same method")
        if {lines[metric]["n"] for metric in METRICS} != {"5"}:
            raise ValueError(f"{row} of {name} has other than five seeds")
        baselines[label] = baseline
        cells[label] = {metric: _cell(lines[metric]) for metric in METRICS}
    display = {metric: DISPLAY[metric] for metric in METRICS}
    return Comparison(display, {"": tuple(ROWS)}, baselines, cells, dict.fromkeys(METRICS, frozenset()))


def _cell(line: dict[str, str]) -> Cell:
    return Cell((), math.nan, None, *(float(line[key]) for key in ("difference", "low", "high")))


if __name__ == "__main__":
    save_figure(FIGURE, differences(comparison()))
