"""Conclusion of a comparison in sentences: the best network, its lead, and whether that is more
than chance."""

import math
from dataclasses import dataclass

from probattn.experiments.evaluation.methods import BASELINE, ENSEMBLE, row_label
from probattn.experiments.evaluation.seed_statistics import Cell, compare
from probattn.experiments.reporting.html import paragraphs
from probattn.experiments.studies.compare import Results

TITLE = "Test data"
# Metrics by which networks are chosen: the first one that a comparison has.
DECISIVE = ("nll", "crps", "rmse")


@dataclass(frozen=True)
class Gap:
    """Difference of the chosen row from another; lower is better.

    Args:
        other: name of the other row.
        value: its mean.
        cell: the difference, with its interval.
    """

    other: str
    value: float
    cell: Cell

    @property
    def verdict(self) -> str:
        """Relation of the chosen row to the other: a difference, unless it may be chance."""
        relation = "better than" if self.cell.difference < 0 else "worse than"
        if self.cell.significant or not self.cell.has_interval:
            return relation
        if self.cell.low > 0 or self.cell.high < 0:  # of two seeds, or not after the correction
            return f"on these seeds {relation}"
        return "not distinguishable from"


def verdict(results: Results) -> list[str]:
    """Return what one should know about a comparison on test data, the most important first; empty
    without one.

    The network is the run with one of its methods, ensembles left out, whose mean is best.
    """
    if TITLE not in results.comparisons:
        return []
    table = results.comparisons[TITLE]
    decisive = [key for key in DECISIVE if key in table.metrics]
    if not decisive:
        return []
    metric = decisive[0]
    test = results.scores[results.scores["set"] == "test"]
    means = {row: table.cells[row][metric].mean for row in table.rows}
    networks: list[str] = []
    rivals: list[str] = []
    runs = {}
    for run, method in test[["run", "method"]].drop_duplicates().itertuples(index=False):
        row = row_label(run, method)
        runs[row] = run
        if not method.startswith(ENSEMBLE) and math.isfinite(means[row]):
            (rivals if method.startswith(BASELINE) else networks).append(row)
    if not networks:
        return []
    best = min(networks, key=means.__getitem__)
    softmax = table.baselines.get(best)
    if softmax and runs[softmax] == runs[best]:  # another method of the same run
        softmax = None
    cells = [cell for of_row in table.cells.values() for cell in of_row.values()]
    return paragraphs(
        "verdict.txt",
        best=best,
        choices=len(networks),
        mean=means[best],
        title=table.metrics[metric].title,
        softmax=softmax and Gap(softmax, means[softmax], table.cells[best][metric]),
        rival=rivals and _gap(results, metric, best, min(rivals, key=means.__getitem__)),
        differences=sum(cell.has_interval for cell in cells),
        significant=sum(cell.significant for cell in cells),
        seeds=table.cells[best][metric].n,
        seconds=results.seconds.get(runs[best]),
        softmax_seconds=softmax and results.seconds.get(runs[softmax]),
    )


def _gap(results: Results, metric: str, row: str, other: str) -> Gap:
    """Return the difference of two rows on test data."""
    test = results.scores[results.scores["set"] == "test"]
    names = list(map(row_label, test["run"], test["method"]))
    scores = test.assign(row=names).drop_duplicates(["row", "seed"]).set_index(["row", "seed"])
    pair = compare(
        scores.loc[[row, other], [metric]],
        baselines={row: other},
        resampled=results.resampled.get("test"),
    )
    return Gap(other, pair.cells[other][metric].mean, pair.cells[row][metric])
