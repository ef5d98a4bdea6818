"""Figure of *When does it help?* from the committed results: ``python docs/evidence.py`` writes it
to ``docs/figures``.

Needs the extra ``cli``.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import norm, t

from probattn.experiments.evaluation.methods import row_label
from probattn.experiments.evaluation.seed_statistics import (
    Cell,
    Comparison,
    Resampled,
    corrected_cells,
)
from probattn.experiments.plots.differences import differences
from probattn.experiments.plots.style import save_figure
from probattn.experiments.studies import collect
from probattn.experiments.studies.compare import compare_results
from probattn.inference.metrics import OF_CLASSES

FIGURE = Path(__file__).parent / "figures" / "differences-from-softmax.svg"
RESULTS = Path(__file__).parents[1] / "experiments" / "results"
METRICS = ("accuracy", "nll", "ece", "aurc")
SEEDS = {"digits-splits": 20, "timm-digits": 6}
"""Study → number of seeds, where it is not 5."""
METHOD = "temperature"
GP = "(layer.mean=softmax, layer.amplitude=1.0, layer.guide_scale=1.0)"
BETTER = "(positions 0.5, dropout 0.2)"
SOFTMAX = {
    "digits-splits": "digits/softmax",
    "timm-digits": "timm/softmax (positions 0.02)",
    "mnist": "mnist/softmax",
    "cifar10-small": "cifar10-small/softmax",
    "cifar10": "kep-svgp/cifar10-softmax",
    "imdb": "kep-svgp/imdb-softmax",
    "finetune-cola": "finetune/cola-softmax",
}
"""Study → its run with softmax attention."""
ROWS = {
    "digits, 20 splits: KEP-SVGP": ("digits-splits", "digits/kep-svgp"),
    "digits, 20 splits: anchored": ("digits-splits", "digits/anchored"),
    "digits, 20 splits: RFF-GPA": ("digits-splits", "digits/rff-gpa"),
    "timm's ViT as it starts: KEP-SVGP": ("timm-digits", "timm/kep-svgp (positions 0.02)"),
    "timm's ViT as it starts: anchored": ("timm-digits", "timm/anchored (positions 0.02)"),
    "timm's ViT, better start: KEP-SVGP": ("timm-digits", f"timm/kep-svgp {BETTER}"),
    "timm's ViT, better start: anchored": ("timm-digits", f"timm/anchored {BETTER}"),
    "MNIST: KEP-SVGP": ("mnist", "mnist/kep-svgp"),
    "MNIST: anchored": ("mnist", "mnist/anchored"),
    "CIFAR-10: anchored": ("cifar10-small", "cifar10-small/anchored"),
    "CIFAR-10: KEP-SVGP": ("cifar10-small", "cifar10-small/kep-svgp"),
    "CIFAR-10, four layers: KEP-SVGP": ("cifar10", "kep-svgp/cifar10"),
    "CIFAR-10, four layers: softmax plus GP": ("cifar10", f"kep-svgp/cifar10 {GP}"),
    "IMDB: KEP-SVGP": ("imdb", "kep-svgp/imdb"),
    "IMDB: anchored": ("imdb", "kep-svgp/imdb-softmax anchored (layer.anchors=16)"),
    "CoLA, fine-tuned: KEP-SVGP": ("finetune-cola", "finetune/cola"),
    "CoLA, fine-tuned: softmax plus GP": ("finetune-cola", f"finetune/cola {GP}"),
    "CoLA, fine-tuned: sparse CGP": ("finetune-cola", "finetune/cola-sparse"),
}
"""Row of the figure → study and run of the results; test data, with temperature scaling of both
layers."""


@cache
def resampled_rows(study: str) -> Resampled | None:
    """Return the metrics of a study's rows on resampled seeds and examples; None without kept
    predictions."""
    kept = RESULTS / f"{study}.parquet"
    if not kept.exists():
        return None
    examples = pd.read_parquet(kept)
    return collect.resampled(examples[examples["method"] == METHOD])["test"]


def cells(study: str, run: str) -> dict[str, Cell]:
    """Return metric → cell with the difference from softmax attention, both with temperature
    scaling.

    Raises:
        ValueError: another number of seeds than :data:`SEEDS`, or a difference from another
            baseline.
    """
    results, baseline = pd.read_csv(RESULTS / f"{study}.csv"), SOFTMAX[study]
    if run.endswith(BETTER):
        baseline = f"timm/softmax {BETTER}"
    resampled = resampled_rows(study)
    if "seed" in results:
        row, twin = row_label(run, METHOD), row_label(baseline, METHOD)
        baselines = {run: baseline, baseline: baseline}
        compared = compare_results(results, "test", baselines=baselines, resampled=resampled)
        counts = {compared.cells[name][metric].n for name in (row, twin) for metric in METRICS}
        result = {metric: compared.cells[row][metric] for metric in METRICS}
    else:
        wanted = {
            "run": run,
            "method": METHOD,
            "set": "test",
            "baseline": baseline,
            "baseline_method": METHOD,
        }
        lines = results[(results[[*wanted]] == pd.Series(wanted)).all(axis=1)].set_index("metric")
        values = lines.reindex(METRICS)[list(Cell._fields[:-1])]
        result = {metric: Cell(*numbers) for metric, *numbers in values.itertuples()}
        counts = {cell.n for cell in result.values()}
    seeds = SEEDS.get(study, 5)
    if counts != {seeds}:
        raise ValueError(f"{run} of {study} has other than {seeds} seeds beside {baseline}")
    # Resampled seeds and examples have a nearly normal law, seeds alone Student's.
    law = norm() if resampled else t(seeds - 1)
    return {metric: cell._replace(p_value=p_value(cell, law)) for metric, cell in result.items()}


def p_value(cell: Cell, law: Any) -> float:
    """Return the p-value of the test whose 95 % interval a cell has, by its standardised law."""
    error = (cell.high - cell.low) / 2 / law.ppf(0.975)
    return float(2 * law.sf(abs(cell.difference) / error))


def comparison() -> Comparison:
    """Return the differences of :data:`ROWS` from softmax attention."""
    columns = {metric: OF_CLASSES[metric] for metric in METRICS}
    rows = {}
    for label, row in ROWS.items():
        rows[label] = pd.DataFrame(cells(*row), index=Cell._fields).transpose()
    baselines = {label: SOFTMAX[study] for label, (study, _) in ROWS.items()}
    corrected = corrected_cells(pd.concat(rows))
    return Comparison(columns, {"": tuple(ROWS)}, baselines, corrected)


if __name__ == "__main__":
    save_figure(FIGURE, differences(comparison()))
