"""Figure of *When does it help?* from the committed results: ``python docs/evidence.py`` writes it to ``docs/figures``.

Needs the extra ``cli``.
"""

import csv
from collections import defaultdict
from pathlib import Path

from probattn.experiments.evaluation.metric_display import DISPLAY
from probattn.experiments.evaluation.seed_statistics import Cell, Comparison, MetricsBySeed, compare
from probattn.experiments.plots.differences import differences
from probattn.experiments.plots.svg import save_figure

FIGURE = Path(__file__).parent / "figures" / "differences-from-softmax.svg"
RESULTS = Path(__file__).parents[1] / "experiments" / "results"
METRICS = ("accuracy", "nll", "ece", "aurc")
SEEDS = 5
GP = "(layer.mean=softmax, layer.amplitude=1.0, layer.guide_scale=1.0)"
SHIFT = "shift/mean/1-3-5"
SOFTMAX = {
    "imdb": "kep-svgp/imdb-softmax",
    "cifar10": "kep-svgp/cifar10-softmax",
    "finetune-cola": "finetune/cola-softmax",
    "digits": "digits/softmax",
}
"""Study → its run with softmax attention."""
SCALED = " + temperature scaling"
ROWS = {
    "IMDB: KEP-SVGP": ("imdb", "kep-svgp/imdb", "posterior", "test"),
    f"IMDB: KEP-SVGP{SCALED}": ("imdb", "kep-svgp/imdb", "temperature", "test"),
    "CIFAR-10: KEP-SVGP": ("cifar10", "kep-svgp/cifar10", "posterior", "test"),
    f"CIFAR-10: KEP-SVGP{SCALED}": ("cifar10", "kep-svgp/cifar10", "temperature", "test"),
    "CIFAR-10: softmax plus GP": ("cifar10", f"kep-svgp/cifar10 {GP}", "posterior", "test"),
    f"CIFAR-10: softmax plus GP{SCALED}": ("cifar10", f"kep-svgp/cifar10 {GP}", "temperature", "test"),
    f"CoLA, fine-tuned: KEP-SVGP{SCALED}": ("finetune-cola", "finetune/cola", "temperature", "test"),
    f"CoLA, fine-tuned: softmax plus GP{SCALED}": ("finetune-cola", f"finetune/cola {GP}", "temperature", "test"),
    f"CoLA, fine-tuned: sparse CGP{SCALED}": ("finetune-cola", "finetune/cola-sparse", "temperature", "test"),
    "digits: KEP-SVGP": ("digits", "digits/kep-svgp", "posterior", "test"),
    "digits: sparse CGP": ("digits", "digits/sparse-cgp", "posterior", "test"),
    "corrupted digits: KEP-SVGP": ("digits", "digits/kep-svgp", "posterior", SHIFT),
    "corrupted digits: sparse CGP": ("digits", "digits/sparse-cgp", "posterior", SHIFT),
}
"""Row of the figure → study, run, method and test set of the results."""


def read(study: str) -> list[dict[str, str]]:
    """Return the lines of a study's file."""
    with (RESULTS / f"{study}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def by_seed(lines: list[dict[str, str]], *, set_: str) -> MetricsBySeed:
    """Return ``RUN + METHOD`` → seed → metric → value on one test set."""
    scores: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for line in lines:
        if line["set"] == set_:
            values = {metric: float(line[metric]) for metric in METRICS}
            scores[f"{line['run']} + {line['method']}"][int(line["seed"])] = values
    return scores


def cells(study: str, run: str, method: str, set_: str) -> dict[str, Cell]:
    """Return metric → cell with the difference from softmax attention by the same method.

    Raises:
        ValueError: another number of seeds than :data:`SEEDS`, or a difference from another baseline.
    """
    lines, baseline = read(study), SOFTMAX[study]
    if "seed" in lines[0]:
        row, other = f"{run} + {method}", f"{baseline} + {method}"
        scores = {name: seeds for name, seeds in by_seed(lines, set_=set_).items() if name in (row, other)}
        metrics = {metric: DISPLAY[metric] for metric in METRICS}
        result = dict(compare(scores, baselines={row: other}, metrics=metrics).cells[row])
        counts = {cell.n for cell in result.values()} | {len(scores[other])}
    else:
        wanted = {"run": run, "method": method, "set": set_, "baseline": baseline, "baseline_method": method}
        chosen = [line for line in lines if wanted.items() <= line.items() and line["metric"] in METRICS]
        fields = ("mean", "std", "difference", "low", "high")
        result = {line["metric"]: Cell((), *(float(line[key]) for key in fields)) for line in chosen}
        counts = {int(line["n"]) for line in chosen}
    if counts != {SEEDS} or len(result) != len(METRICS):
        raise ValueError(f"{run}, {method}, {set_} of {study} has other than {SEEDS} seeds beside {baseline}")
    return result


def comparison() -> Comparison:
    """Return the differences of :data:`ROWS` from softmax attention by the same method."""
    display = {metric: DISPLAY[metric] for metric in METRICS}
    rows = {label: cells(*row) for label, row in ROWS.items()}
    baselines = {label: SOFTMAX[study] for label, (study, *_) in ROWS.items()}
    return Comparison(display, {"": tuple(ROWS)}, baselines, rows, dict.fromkeys(METRICS, frozenset()))


if __name__ == "__main__":
    save_figure(FIGURE, differences(comparison()))
