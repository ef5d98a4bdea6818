"""Figure of *When does it help?* and the table of its claims, from the committed results: ``python
docs/evidence.py`` writes them.

Needs the extra ``cli``.
"""

from functools import cache
from pathlib import Path

import pandas as pd
from scipy.stats import t

from probattn.experiments.evaluation.methods import POSTERIOR, row_label
from probattn.experiments.evaluation.seed_statistics import (
    Cell,
    Comparison,
    Resampled,
    compare,
    corrected_cells,
)
from probattn.experiments.plots.differences import differences
from probattn.experiments.plots.style import save_figure
from probattn.experiments.studies import collect
from probattn.inference.metrics import OF_CLASSES

FIGURE = Path(__file__).parent / "figures" / "differences-from-softmax.svg"
RESULTS = Path(__file__).parents[1] / "experiments" / "results"
CLAIMS = RESULTS / "claims.md"
METRICS = ("accuracy", "nll", "ece", "aurc")
SEEDS = {
    "digits-splits": 20,
    "mnist-splits": 20,
    "timm-digits": 6,
    "timm-mnist": 4,
    "cifar10-splits": 5,
    "minilm-cola": 4,
    "minilm-imdb": 3,
}
"""Study → number of seeds, where it is not 5."""
METHOD = "temperature"
GP = "(layer.mean=softmax, layer.amplitude=1.0, layer.guide_scale=1.0)"
START = "(positions 0.02)"
BETTER = "(positions 0.5, dropout 0.2)"
SOFTMAX = {
    "digits-splits": "digits/softmax",
    "digits-standardised": "digits/softmax (network.standardise=true)",
    "timm-digits": f"timm/softmax {START}",
    "timm-mnist": f"timm-mnist/softmax {START}",
    "mnist-splits": "mnist/softmax",
    "cifar10-splits": "cifar10/softmax",
    "cifar10-small": "cifar10-small/softmax",
    "cifar10": "kep-svgp/cifar10-softmax",
    "imdb": "kep-svgp/imdb-softmax",
    "minilm-cola": "minilm-cola/softmax",
    "minilm-imdb": "minilm-imdb/softmax",
}
"""Study → its run with softmax attention."""
SOURCES = {
    "digits-splits": ("digits-20-splits", 359),
    "timm-digits": ("timms-vit", 359),
    "timm-mnist": ("timms-vit", 2_000),
    "mnist-splits": ("mnist-20-splits", 2_000),
    "cifar10-splits": ("cifar-10-5-splits", 10_000),
    "cifar10-small": ("cifar-10", 10_000),
    "cifar10": ("cifar-10", 10_000),
    "imdb": ("imdb", 10_000),
    "minilm-cola": ("cola-by-minilm", 1_500),
    "minilm-imdb": ("imdb-by-minilm", 10_000),
}
"""Study → section of the results with its commands, and number of test examples of a seed."""
ROWS = {
    "digits, 20 splits: KEP-SVGP": ("digits-splits", "digits/kep-svgp"),
    "digits, 20 splits: anchored": ("digits-splits", "digits/anchored"),
    "digits, 20 splits: RFF-GPA": ("digits-splits", "digits/rff-gpa"),
    "digits, 20 splits: L2 softmax": ("digits-splits", "digits/l2-softmax"),
    "digits, 20 splits: ensemble of 3": ("digits-splits", "digits/softmax, ensemble of 3"),
    "digits, 20 splits: support vectors": ("digits-splits", "digits/softmax", "baseline/svm"),
    "digits, 20 splits: small CNN": ("digits-splits", "digits/softmax", "baseline/cnn"),
    "digits, timm's ViT: KEP-SVGP": ("timm-digits", f"timm/kep-svgp {START}"),
    "digits, timm's ViT: anchored": ("timm-digits", f"timm/anchored {START}"),
    "digits, timm's ViT, better start: KEP-SVGP": ("timm-digits", f"timm/kep-svgp {BETTER}"),
    "digits, timm's ViT, better start: anchored": ("timm-digits", f"timm/anchored {BETTER}"),
    "MNIST, 20 splits: KEP-SVGP": ("mnist-splits", "mnist/kep-svgp"),
    "MNIST, 20 splits: anchored": ("mnist-splits", "mnist/anchored"),
    "MNIST, 20 splits: RFF-GPA": ("mnist-splits", "mnist/rff-gpa"),
    "MNIST, 20 splits: L2 softmax": ("mnist-splits", "mnist/l2-softmax"),
    "MNIST, 20 splits: ensemble of 3": ("mnist-splits", "mnist/softmax, ensemble of 3"),
    "MNIST, 20 splits: support vectors": ("mnist-splits", "mnist/softmax", "baseline/svm"),
    "MNIST, 20 splits: small CNN": ("mnist-splits", "mnist/softmax", "baseline/cnn"),
    "MNIST, timm's ViT: KEP-SVGP": ("timm-mnist", f"timm-mnist/kep-svgp {START}"),
    "MNIST, timm's ViT: anchored": ("timm-mnist", f"timm-mnist/anchored {START}"),
    "MNIST, timm's ViT, better start: KEP-SVGP": ("timm-mnist", f"timm-mnist/kep-svgp {BETTER}"),
    "MNIST, timm's ViT, better start: anchored": ("timm-mnist", f"timm-mnist/anchored {BETTER}"),
    "CIFAR-10, 5 splits: anchored": ("cifar10-splits", "cifar10/anchored"),
    "CIFAR-10, 5 splits: L2 softmax": ("cifar10-splits", "cifar10/l2-softmax"),
    "CIFAR-10, 5 splits: ensemble of 3": (
        "cifar10-splits",
        "cifar10/softmax, ensemble of 3",
    ),
    "CIFAR-10, 5 splits: small CNN": ("cifar10-splits", "cifar10/softmax", "baseline/cnn"),
    "CIFAR-10: KEP-SVGP": ("cifar10-small", "cifar10-small/kep-svgp"),
    "CIFAR-10, four layers: KEP-SVGP": ("cifar10", "kep-svgp/cifar10"),
    "CIFAR-10, four layers: softmax plus GP": ("cifar10", f"kep-svgp/cifar10 {GP}"),
    "IMDB: KEP-SVGP": ("imdb", "kep-svgp/imdb"),
    "IMDB: anchored": ("imdb", "kep-svgp/imdb-softmax anchored (layer.anchors=16)"),
    "IMDB, MiniLM: KEP-SVGP": ("minilm-imdb", "minilm-imdb/kep-svgp"),
    "IMDB, MiniLM: softmax plus GP": ("minilm-imdb", "minilm-imdb/softmax plus GP"),
    "IMDB, MiniLM: anchored readout": ("minilm-imdb", "minilm-imdb/softmax", "anchored"),
    "IMDB, MiniLM: bag of words": ("minilm-imdb", "minilm-imdb/bag of words"),
    "CoLA, MiniLM: KEP-SVGP": ("minilm-cola", "minilm-cola/kep-svgp"),
    "CoLA, MiniLM: softmax plus GP": ("minilm-cola", "minilm-cola/softmax plus GP"),
    "CoLA, MiniLM: anchored readout": ("minilm-cola", "minilm-cola/softmax", "anchored"),
    "CoLA, MiniLM: ensemble of 3": ("minilm-cola", "minilm-cola/softmax, ensemble of 3"),
    "CoLA, MiniLM: bag of words": ("minilm-cola", "minilm-cola/bag of words"),
}
"""Row of the figure → study, run and method of the results on test data; the method is temperature
scaling, as that of softmax attention, if none is named."""


@cache
def resampled_rows(study: str) -> Resampled | None:
    """Return the metrics of a study's rows on resampled seeds and examples; None without kept
    predictions."""
    kept = RESULTS / f"{study}.parquet"
    if not kept.exists():
        return None
    examples = pd.read_parquet(kept)
    return collect.resampled(examples[examples["method"] != POSTERIOR])["test"]


def cells(study: str, run: str, method: str = METHOD) -> dict[str, Cell]:
    """Return metric → cell with the difference of a run by a method from softmax attention with
    temperature scaling; its p-value is not corrected.

    Raises:
        ValueError: another number of seeds than :data:`SEEDS`, or a difference from another
            baseline.
    """
    results = pd.read_csv(RESULTS / f"{study}.csv")
    baseline = softmax_run(study, run)
    if "seed" in results:
        found = _of_seeds(results, study, (run, method), (baseline, METHOD))
    else:
        found = _of_summary(results, study, run, baseline)
    seeds = SEEDS.get(study, 5)
    if {cell.n for cell in found.values()} != {seeds}:
        raise ValueError(f"{run} of {study} has other than {seeds} seeds beside {baseline}")
    return found


def softmax_run(study: str, run: str) -> str:
    """Return the run with softmax attention with which a run is compared."""
    softmax = SOFTMAX[study]
    return softmax.replace(START, BETTER) if run.endswith(BETTER) else softmax


def _of_seeds(
    results: pd.DataFrame, study: str, ours: tuple[str, str], theirs: tuple[str, str]
) -> dict[str, Cell]:
    """Return the cells of results of single seeds; each is compared alone, without correction.

    Args:
        results: in the wide form.
        study: its name.
        ours, theirs: run and method of both rows.
    """
    tests = results[results["set"] == "test"]
    labels = [row_label(*pair) for pair in zip(tests["run"], tests["method"], strict=True)]
    row, twin = row_label(*ours), row_label(*theirs)
    scores = tests.assign(row=labels).set_index(["row", "seed"]).loc[[row, twin]]
    found = {}
    for metric in METRICS:
        compared = compare(scores[[metric]], baselines={row: twin}, resampled=resampled_rows(study))
        found[metric] = compared.cells[row][metric]
    return found


def _of_summary(results: pd.DataFrame, study: str, run: str, baseline: str) -> dict[str, Cell]:
    """Return the cells of results that hold differences and their Student's intervals alone."""
    wanted = {
        "run": run,
        "method": METHOD,
        "set": "test",
        "baseline": baseline,
        "baseline_method": METHOD,
    }
    lines = results[(results[[*wanted]] == pd.Series(wanted)).all(axis=1)].set_index("metric")
    values = lines.reindex(METRICS)[list(Cell._fields[:-1])]
    found = {}
    for metric, *numbers in values.itertuples():
        cell = Cell(*numbers)
        law = t(SEEDS.get(study, 5) - 1)
        error = (cell.high - cell.low) / 2 / law.ppf(0.975)
        found[metric] = cell._replace(p_value=float(2 * law.sf(abs(cell.difference) / error)))
    return found


def comparison() -> Comparison:
    """Return the differences of :data:`ROWS` from softmax attention."""
    columns = {metric: OF_CLASSES[metric] for metric in METRICS}
    rows = {}
    for label, row in ROWS.items():
        rows[label] = pd.DataFrame(cells(*row), index=Cell._fields).transpose()
    baselines = {label: softmax_run(*row[:2]) for label, row in ROWS.items()}
    corrected = corrected_cells(pd.concat(rows))
    best = dict.fromkeys(METRICS, set[str]())  # rows of other networks and data have no best one
    return Comparison(columns, {"": tuple(ROWS)}, baselines, corrected, best)


def claims(found: Comparison) -> str:
    """Return the differences that are more than chance as a table in Markdown; its last column
    links to their commands."""
    lines = [
        "# Claims",
        "",
        "Differences from softmax attention on test data that are more than chance by Holm's",
        "correction for all of the figure. `python docs/evidence.py` writes this table.",
        "",
        "| claim | difference [95 % interval] | corrected p | seeds | test examples | commands |",
        "|---|---|---|---|---|---|",
    ]
    for label, line in found.cells.items():
        study = ROWS[label][0]
        seeds = SEEDS.get(study, 5)
        section, examples = SOURCES[study]
        for key, cell in line.items():
            if not cell.significant:
                continue
            metric = found.metrics[key]
            values = (cell.difference, cell.low, cell.high)
            difference, low, high = (f"{metric.scale * value:.3g}" for value in values)
            lines.append(
                f"| {label}: {metric.title} × {metric.scale:g} | {difference} [{low}, {high}] | "
                f"{cell.p_value:.1g} | {seeds} | {examples:,} | [{section}](README.md#{section}) |"
            )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    evidence = comparison()
    save_figure(FIGURE, differences(evidence))
    CLAIMS.write_text(claims(evidence), encoding="utf-8")
