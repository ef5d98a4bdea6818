"""Statistics over seeds: means, standard deviations, paired differences to a baseline, the best of
each column."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t

from probattn.experiments.evaluation.metric_display import best_of, columns
from probattn.inference.metrics import Metric

CONFIDENCE = 0.95
"""Confidence level of the intervals."""
TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
ROUNDING = 1e-12
"""Spread of differences, relative to the largest value, below which they are equal."""
Resampled = Mapping[str, Mapping[str, np.ndarray]]
"""Row → metric → its values on resampled test examples, the same examples for all rows."""


class Cell(NamedTuple):
    """One metric of one row, unscaled; what is not defined is NaN.

    Args:
        n: number of seeds, 0 if none has the metric.
        mean: over the seeds; defined if all values are finite.
        std: sample standard deviation (n − 1 in the denominator).
        difference: mean of this row minus its baseline over the seeds that both have.
        low, high: 95 % interval of the difference, if it has a width.
    """

    n: int
    mean: float
    std: float = math.nan
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @property
    def has_interval(self) -> bool:
        """True if the difference has an interval."""
        return not math.isnan(self.low)

    @property
    def significant(self) -> bool:
        """True if the interval of the difference excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Comparison:
    """Rows compared over their seeds; the source of all tables and figures of a comparison.

    Args:
        metrics: the columns in their order.
        groups: heading → rows in their order; a single heading "" without groups.
        baselines: row → the row that it is compared with; rows without one are left out.
        cells: row → metric → cell.
        note: sentences below its table, in addition to those on its numbers.
    """

    metrics: Mapping[str, Metric]
    groups: Mapping[str, Sequence[str]]
    baselines: Mapping[str, str]
    cells: Mapping[str, Mapping[str, Cell]]
    note: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        """All rows, group by group."""
        return tuple(row for group in self.groups.values() for row in group)

    @property
    def best(self) -> dict[str, set[str]]:
        """Metric → the rows with the best displayed mean of their group.

        None are best if fewer than two rows of a group have a mean, or if all are equal.
        """
        best: dict[str, set[str]] = {key: set() for key in self.metrics}
        for rows in self.groups.values():
            for key, metric in self.metrics.items():
                means = {row: self.cells[row][key].mean for row in rows}
                best[key] |= best_of(means, metric)
        return best


def compare(
    scores: pd.DataFrame,
    *,
    baselines: Mapping[str, str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    resampled: Resampled | None = None,
    note: str = "",
) -> Comparison:
    """Aggregate the scores of several rows over their seeds.

    Intervals of differences are Student's t on the seeds that a row and its baseline share; with a
    single one, percentiles of the differences on resampled test examples.

    Args:
        scores: a column a metric, unscaled, indexed by the names of the rows and by seeds.
        baselines: row → the row to subtract from it, seed by seed, such as its softmax twin.
        groups: heading → its rows; the best is marked within a group, and rows of no group are left
            out. None is one group of all rows.
        metrics: the columns; None takes those that a table shows.
        resampled: values on resampled test examples.
        note: sentences below the table.

    Raises:
        ValueError: no row has any of the metrics.
        KeyError: an unknown baseline.
    """
    metrics = dict(metrics or columns(scores.columns))
    if not metrics:
        raise ValueError("no row has a metric of the tables: name the columns with metrics=")
    baselines = dict(baselines or {})
    resampled = resampled or {}
    finite = scores.reindex(columns=list(metrics)).astype(float)
    finite = finite.replace([np.inf, -np.inf], np.nan)
    by_row = {row: finite.xs(row) for row in finite.index.unique(0)}
    cells = {}
    for row, ours in by_row.items():
        statistics = _of_row(ours)
        if row in baselines:
            baseline = baselines[row]
            gaps = pd.DataFrame(resampled.get(row)) - pd.DataFrame(resampled.get(baseline))
            statistics = statistics.join(_differences(ours, by_row[baseline], gaps))
        columns_of_row = statistics.to_dict("index")
        cells[row] = {key: Cell(**values) for key, values in columns_of_row.items()}
    return Comparison(metrics, groups or {"": tuple(by_row)}, baselines, cells, note)


def student_interval(differences: Any) -> tuple[Any, Any]:
    """Return the ends of Student's interval of the mean of a series, or of each column of a frame;
    NaN for fewer than two values."""
    mean = differences.mean(skipna=False)
    half = t.ppf(TAILS[1], len(differences) - 1) * differences.sem(skipna=False)
    return mean - half, mean + half


def _of_row(ours: pd.DataFrame) -> pd.DataFrame:
    """Return ``n``, ``mean`` and ``std`` of each column."""
    return pd.DataFrame(
        {
            "n": ours.notna().any() * len(ours),
            "mean": ours.mean(skipna=False),
            "std": ours.std(skipna=False),
        }
    )


def _differences(
    ours: pd.DataFrame,
    theirs: pd.DataFrame,
    resampled: pd.DataFrame,
) -> pd.DataFrame:
    """Return the ``difference`` of each column and its interval, ``low`` and ``high``.

    Args:
        ours, theirs: values by seed.
        resampled: differences on resampled test examples.
    """
    seeds = ours.index.intersection(theirs.index)
    ours, theirs = ours.loc[seeds], theirs.loc[seeds]
    gaps = ours - theirs
    if len(seeds) == 1:
        low, high = (resampled.quantile(tail) for tail in TAILS)
    else:
        low, high = student_interval(gaps)
    frame = pd.DataFrame({"difference": gaps.mean(skipna=False), "low": low, "high": high})
    frame = frame.reindex(gaps.columns)
    largest = np.maximum(ours.abs().max(), theirs.abs().max())
    is_constant = gaps.std() <= ROUNDING * largest  # equal but for rounding
    has_width = (frame["low"] < frame["high"]) & ~is_constant
    frame[["low", "high"]] = frame[["low", "high"]].where(has_width, axis=0)
    return frame
