"""Means, chance floors of the ECE and differences of the studies with kept predictions, and what
*When does it help?* shows of others: ``python docs/intervals.py`` writes them to
``experiments/results/intervals.md``.

Each method is that of *When does it help?*: temperature scaling, or what a row names.
"""

import sys
from pathlib import Path

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).parent))  # of the next import, also under runpy

from evidence import BETTER, METHOD, RESULTS, START, cells, resampled_rows

from probattn.experiments.evaluation.methods import METHODS, row_label
from probattn.experiments.evaluation.seed_statistics import Cell, compare
from probattn.inference.metrics import OF_CLASSES, Metric
from probattn.inference.metrics.calibration_errors import ChanceFloor, ece_floor

FILE = RESULTS / "intervals.md"
COLUMNS = {key: OF_CLASSES[key] for key in ("accuracy", "nll", "ece", "aurc")}
METRICS = COLUMNS | {"refinement": Metric(None, "REF", 10, False, "refinement part of the NLL")}
TITLES = [f"{metric.title} × {metric.scale:g}" for metric in METRICS.values()]
OPPONENTS = {
    "digits-splits": ("digits/softmax", "digits/softmax, ensemble of 3"),
    "mnist-splits": ("mnist/softmax", "mnist/l2-softmax", "mnist/softmax, ensemble of 3"),
    "cifar10-splits": (
        "cifar10/softmax",
        "cifar10/l2-softmax",
        "cifar10/softmax, ensemble of 3",
    ),
    "timm-digits": (f"timm/softmax {START}", f"timm/softmax {BETTER}"),
    "timm-mnist": (
        f"timm-mnist/softmax {START}",
        f"timm-mnist/softmax {BETTER}",
        f"timm-mnist/l2-softmax, all blocks {BETTER}",
    ),
    "minilm-cola": ("minilm-cola/softmax", "minilm-cola/softmax, ensemble of 3"),
    "minilm-imdb": ("minilm-imdb/softmax", "minilm-imdb/bag of words"),
}
"""Study → runs from which all others are subtracted."""
OTHERS = {
    "digits, first split: anchored": (
        "digits-standardised",
        "digits/anchored (network.standardise=true)",
    ),
    "IMDB: KEP-SVGP": ("imdb", "kep-svgp/imdb"),
    "IMDB: anchored": ("imdb", "kep-svgp/imdb-softmax anchored (layer.anchors=16)"),
    "IMDB, trained again: KEP-SVGP": ("imdb", "kep-svgp/imdb (trained again)"),
    "IMDB, trained again, five samples: KEP-SVGP": (
        "imdb",
        "kep-svgp/imdb (trained again, train.num_samples=5)",
    ),
}
"""Row → study without kept predictions, and run."""
UNKNOWN = {
    "digits": ("digits-standardised", "digits/{} (network.standardise=true)"),
    "MNIST": ("mnist", "mnist/{}"),
    "CIFAR-10": ("cifar10-small", "cifar10-small/{}"),
}
"""Images → study with unknown images, and name of its runs."""
CLASSES = 10
"""Most classes of a study."""


def floor(examples: pd.DataFrame) -> ChanceFloor:
    """Return the chance floor of the ECE of kept predictions, which need not know all
    probabilities: an error is at any class but the predicted one."""
    confidence = torch.tensor(examples["confidence"].to_numpy(), dtype=torch.float64)
    others = ((1 - confidence) / CLASSES)[:, None].expand(-1, CLASSES)
    wrong = torch.tensor((examples["predicted"] != examples["label"]).to_numpy())
    return ece_floor(torch.cat([confidence[:, None], others], 1), wrong.long(), draws=200)


def floors(study: str) -> pd.DataFrame:
    """Return the mean chance floor of each row, and the number of seeds whose ECE is above it by a
    p-value of 0.05."""
    examples = pd.read_parquet(RESULTS / f"{study}.parquet")
    rows = []
    keys = ["run", "method", "seed"]
    for (run, method, seed), of_seed in examples.groupby(keys, observed=True):
        found = floor(of_seed)
        rows.append((row_label(run, method), seed, found.mean, found.p_value < 0.05))
    frame = pd.DataFrame(rows, columns=["row", "seed", "floor", "above"])
    return frame.groupby("row").agg(floor=("floor", "mean"), above=("above", "sum"))


def chosen(study: str) -> pd.DataFrame:
    """Return the scores of a study on test data, indexed by row and seed, without those before
    temperature scaling."""
    scores = pd.read_csv(RESULTS / f"{study}.csv")
    scores = scores[(scores["set"] == "test") & (scores["method"] != "posterior")]
    labels = [row_label(*pair) for pair in zip(scores["run"], scores["method"], strict=True)]
    return scores.assign(row=labels).set_index(["row", "seed"])[[*METRICS]]


def short(row: str) -> str:
    """Return the name of a row without its study, and without temperature scaling."""
    title = METHODS[METHOD].title
    return (row.partition("/")[2] or row).removesuffix(f" + {title}")


def table(study: str) -> str:
    """Return the means and the differences of a study as tables in Markdown."""
    scores, above = chosen(study), floors(study)
    seeds = scores.groupby("row").size()
    lines = [f"## {study}", "", f"| | seeds | {' | '.join(TITLES)} | floor × 100 | above |"]
    lines.append("|---" * (len(METRICS) + 4) + "|")
    for row, means in scores.groupby("row", sort=False).mean().iterrows():
        values = [f"{METRICS[key].scale * value:.2f}" for key, value in means.items()]
        ending = f"{100 * above.floor[row]:.2f} | {above.above[row]} of {seeds[row]}"
        lines.append(f"| {short(row)} | {seeds[row]} | {' | '.join(values)} | {ending} |")
    for run in OPPONENTS[study]:
        lines += _differences(study, scores, row_label(run, METHOD))
    return "\n".join([*lines, ""])


def _differences(study: str, scores: pd.DataFrame, opponent: str) -> list[str]:
    """Return the lines of the differences of all rows from one."""
    rows = [row for row in scores.index.unique(0) if row != opponent]
    compared = compare(
        scores,
        baselines=dict.fromkeys(rows, opponent),
        metrics=METRICS,
        resampled=resampled_rows(study),
    )
    lines = ["", f"| minus {short(opponent)} | {' | '.join(TITLES)} |"]
    lines.append("|---" * (len(METRICS) + 1) + "|")
    for row in rows:
        cells = compared.cells[row]
        texts = [_difference(cells[key], metric.scale) for key, metric in METRICS.items()]
        lines.append(f"| {short(row)} | {' | '.join(texts)} |")
    return lines


def _difference(cell: Cell, scale: float) -> str:
    """Return a difference with its interval; a star means more than chance by Holm's correction."""
    return _numbers(cell, scale) + (r"\*" if cell.significant else "")


def _numbers(cell: Cell, scale: float, digits: int = 2) -> str:
    """Return a difference with its interval."""
    values = [scale * value for value in (cell.difference, cell.low, cell.high)]
    difference, low, high = (f"{value:.{digits}f}" for value in values)
    return f"{difference} [{low}, {high}]"


def others() -> str:
    """Return the differences of the studies without kept predictions."""
    titles = TITLES[: len(COLUMNS)]
    lines = [
        "## Studies without kept predictions",
        "",
        "Differences from softmax attention on one test set, and intervals over five seeds alone,",
        "without correction. Those of IMDB: KEP-SVGP were kept with two or three digits.",
        "",
        f"| | {' | '.join(titles)} |",
        "|---" * (len(titles) + 1) + "|",
    ]
    for label, (study, run) in OTHERS.items():
        found = cells(study, run)
        texts = [_numbers(found[key], metric.scale) for key, metric in COLUMNS.items()]
        lines.append(f"| {label} | {' | '.join(texts)} |")
    return "\n".join([*lines, ""])


def unknown() -> str:
    """Return how well an anchored readout detects unknown images."""
    lines = [
        "## Unknown images",
        "",
        "AUROC in % of the entropy and the mutual information of an anchored readout of a network",
        "with the named attention; five seeds.",
        "",
        "| | entropy | mutual information | difference |",
        "|---|---|---|---|",
    ]
    for attention in ("softmax", "anchored"):
        for images, (study, name) in UNKNOWN.items():
            for kind in ("letters", "patches"):
                text = _detection(study, name.format(attention), f"ood/{kind}")
                lines.append(f"| {attention}: {images}, {kind} | {text} |")
    return "\n".join([*lines, ""])


def _detection(study: str, run: str, unknown_set: str) -> str:
    """Return the AUROC of both detectors, and their difference."""
    scores = pd.read_csv(RESULTS / f"{study}.csv")
    chosen_rows = (scores["run"] == run) & (scores["method"] == "anchored")
    scores = scores[chosen_rows & (scores["set"] == unknown_set)].set_index("seed")
    detectors = {
        "entropy": scores["entropy_auroc"],
        "mutual information": scores["mutual_information_auroc"],
    }
    values = pd.concat(detectors, names=["row"]).to_frame("auroc")
    pair = {"mutual information": "entropy"}
    metric = OF_CLASSES["auroc"]
    cell = compare(values, baselines=pair, metrics={"auroc": metric}).cells["mutual information"]
    means = (f"{metric.scale * column.mean():.1f}" for column in detectors.values())
    return f"{' | '.join(means)} | {_numbers(cell['auroc'], metric.scale, digits=1)}"


def page() -> str:
    """Return the whole file."""
    head = (
        "# Intervals\n\n"
        "Test data after temperature scaling: means, and the chance floor of the ECE with the\n"
        "number of seeds whose ECE is above it by a p-value of 0.05; then differences with 95 %\n"
        "intervals over seeds and examples. A star means more than chance by Holm's correction\n"
        "for its table. `python docs/intervals.py` writes this file.\n"
    )
    return "\n".join([head, *map(table, OPPONENTS), others(), unknown()])


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
