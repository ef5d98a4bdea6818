"""Figure of *When does it help?* from the committed results: ``python docs/evidence.py`` writes it to ``docs/figures``.

Needs the extra ``cli``.
"""

from pathlib import Path

import pandas as pd

from probattn.experiments.evaluation.methods import row_label
from probattn.experiments.evaluation.metric_display import DISPLAY
from probattn.experiments.evaluation.seed_statistics import Cell, Comparison
from probattn.experiments.plots.differences import differences
from probattn.experiments.plots.style import save_figure
from probattn.experiments.studies.compare import compare_results

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


def cells(study: str, run: str, method: str, set_: str) -> dict[str, Cell]:
    """Return metric → cell with the difference from softmax attention by the same method.

    Raises:
        ValueError: another number of seeds than :data:`SEEDS`, or a difference from another baseline.
    """
    results, baseline = pd.read_csv(RESULTS / f"{study}.csv"), SOFTMAX[study]
    if "seed" in results:
        row, twin = row_label(run, method), row_label(baseline, method)
        compared = compare_results(results, set_, baselines={run: baseline, baseline: baseline})
        counts = {compared.cells[name][metric].n for name in (row, twin) for metric in METRICS}
        result = {metric: compared.cells[row][metric] for metric in METRICS}
    else:
        wanted = {"run": run, "method": method, "set": set_, "baseline": baseline, "baseline_method": method}
        lines = results[(results[[*wanted]] == pd.Series(wanted)).all(axis=1)].set_index("metric")
        counts = set(lines["n"].reindex(METRICS))
        values = lines.reindex(METRICS)[["mean", "std", "difference", "low", "high"]]
        result = {metric: Cell((), *numbers) for metric, *numbers in values.itertuples()}
    if counts != {SEEDS}:
        raise ValueError(f"{run}, {method}, {set_} of {study} has other than {SEEDS} seeds beside {baseline}")
    return result


def comparison() -> Comparison:
    """Return the differences of :data:`ROWS` from softmax attention by the same method."""
    display = {metric: DISPLAY[metric] for metric in METRICS}
    rows = {label: cells(*row) for label, row in ROWS.items()}
    baselines = {label: SOFTMAX[study] for label, (study, *_) in ROWS.items()}
    return Comparison(display, {"": tuple(ROWS)}, baselines, rows)


if __name__ == "__main__":
    save_figure(FIGURE, differences(comparison()))
