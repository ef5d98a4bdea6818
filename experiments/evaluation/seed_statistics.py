"""Statistics over seeds: means, standard deviations, paired differences to a baseline, the best of
each column."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t

from probattn.experiments.evaluation.metric_display import columns
from probattn.inference.metrics import Metric

CONFIDENCE = 0.95
"""Confidence level of the intervals."""
TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
ROUNDING = 1e-12
"""Spread of differences, relative to the largest value, below which they are equal."""


class Replicates(NamedTuple):
    """A row's metrics on resampled seeds and test examples, the same ones for all rows.

    Args:
        seeds: that all have stored predictions, in ascending order.
        values: metric → its values ``(r,)``.
    """

    seeds: tuple[int, ...]
    values: Mapping[str, np.ndarray]


Resampled = Mapping[str, Replicates]
"""Row → its metrics on resampled seeds and test examples."""


class Cell(NamedTuple):
    """One metric of one row, unscaled; what is not defined is NaN.

    Args:
        n: number of seeds, 0 if none has the metric.
        mean: over the seeds; defined if all values are finite.
        std: sample standard deviation (n − 1 in the denominator).
        difference: mean of this row minus its baseline over the seeds that both have.
        low, high: 95 % interval of the difference, if it has a width.
        p_value: of no difference, by Holm's correction for all cells of the comparison; not defined
            for two seeds.
    """

    n: int
    mean: float
    std: float = math.nan
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan

    @property
    def has_interval(self) -> bool:
        """True if the difference has an interval."""
        return not math.isnan(self.low)

    @property
    def significant(self) -> bool:
        """True if the corrected p-value is at most 0.05."""
        return self.has_interval and self.p_value <= 1 - CONFIDENCE


@dataclass(frozen=True)
class Comparison:
    """Rows compared over their seeds; the source of all tables and figures of a comparison.

    Args:
        metrics: the columns in their order.
        groups: heading → rows in their order; a single heading "" without groups.
        baselines: row → the row that it is compared with; rows without one are left out.
        cells: row → metric → cell.
        best: metric → the row of each group with the best mean, if its difference from the next is
            more than chance: a p-value of at most 0.05, that of this pair alone.
        note: sentences below its table, in addition to those on its numbers.
    """

    metrics: Mapping[str, Metric]
    groups: Mapping[str, Sequence[str]]
    baselines: Mapping[str, str]
    cells: Mapping[str, Mapping[str, Cell]]
    best: Mapping[str, set[str]]
    note: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        """All rows, group by group."""
        return tuple(row for group in self.groups.values() for row in group)

    @property
    def has_intervals(self) -> bool:
        """True if any difference has an interval."""
        return any(cell.has_interval for row in self.cells.values() for cell in row.values())


def compare(
    scores: pd.DataFrame,
    *,
    baselines: Mapping[str, str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    resampled: Resampled | None = None,
) -> Comparison:
    """Aggregate the scores of several rows over their seeds.

    Intervals of differences are over seeds and test examples: Student's t with their spread on
    resampled ones. Without them, they are Student's t on the seeds that a row and its baseline
    share, which knows this test set alone.

    Args:
        scores: a column a metric, unscaled, indexed by the names of the rows and by seeds.
        baselines: row → the row to subtract from it, seed by seed, such as its softmax twin.
        groups: heading → its rows; the best is found within a group, and rows of no group are left
            out. None is one group of all rows.
        metrics: the columns; None takes those that a table shows.
        resampled: values on resampled test examples.

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
    statistics = {}
    for row, ours in by_row.items():
        number = ours.notna().any() * len(ours)
        means, stds = ours.mean(skipna=False), ours.std(skipna=False)
        statistics[row] = pd.DataFrame({"n": number, "mean": means, "std": stds})
        if row in baselines:
            differences = _differences(row, baselines[row], by_row, resampled)
            statistics[row] = statistics[row].join(differences)
    cells = corrected_cells(pd.concat(statistics))
    groups = groups or {"": tuple(by_row)}
    best = _best_rows(by_row, groups, metrics, resampled)
    return Comparison(metrics, groups, baselines, cells, best)


def _best_rows(
    by_row: Mapping[str, pd.DataFrame],
    groups: Mapping[str, Sequence[str]],
    metrics: Mapping[str, Metric],
    resampled: Resampled,
) -> dict[str, set[str]]:
    """Return :attr:`Comparison.best` of the finite values of each row, by seed."""
    best: dict[str, set[str]] = {key: set() for key in metrics}
    for rows in groups.values():
        for key, metric in metrics.items():
            means = pd.Series({row: by_row[row][key].mean(skipna=False) for row in rows}).dropna()
            ordered = means.sort_values(ascending=not metric.higher_is_better, kind="stable")
            if len(ordered) < 2:
                continue
            first, following = ordered.index[:2]
            gap = _differences(first, following, by_row, resampled).loc[key]
            is_to_the_better = (gap["difference"] > 0) == metric.higher_is_better
            if is_to_the_better and gap["p_value"] <= 1 - CONFIDENCE:
                best[key].add(first)
    return best


def corrected_cells(statistics: pd.DataFrame) -> dict[str, dict[str, Cell]]:
    """Return row → metric → cell, with p-values that are corrected for their number.

    Args:
        statistics: the fields of :class:`Cell` by row and metric; what lacks is NaN.
    """
    frame = statistics.reindex(columns=list(Cell._fields))
    frame["p_value"] = holm(frame["p_value"])
    cells: dict[str, dict[str, Cell]] = {}
    for (row, key), *values in frame.itertuples():
        cells.setdefault(row, {})[key] = Cell(*values)
    return cells


def holm(p_values: pd.Series) -> pd.Series:
    """Return adjusted p-values, by which the chance of any false discovery is at most the level
    (Holm, 1979).

    The k-th smallest of m is multiplied by m − k + 1, and is no less than those before it.
    """
    ordered = p_values.dropna().sort_values(kind="stable")
    factors = np.arange(len(ordered), 0, -1)
    return (factors * ordered).clip(upper=1.0).cummax().reindex(p_values.index)


def student_interval(differences: Any) -> tuple[Any, Any]:
    """Return the ends of Student's interval of the mean of a series, or of each column of a frame;
    NaN for fewer than two values."""
    mean = differences.mean(skipna=False)
    half = t.ppf(TAILS[1], len(differences) - 1) * differences.sem(skipna=False)
    return mean - half, mean + half


def _error(gaps: pd.DataFrame, spread: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Return the standard error of each mean difference, and its degrees of freedom.

    A bootstrap of S seeds has (S − 1)/S of the variance of their mean, and a normal law in place of
    Student's: its intervals of three seeds would hold the truth in 72 % of the cases. The variance
    over seeds is therefore the unbiased one, with S − 1 degrees of freedom; that over examples is
    what the bootstrap's has beyond it, with many. Together they have those of Satterthwaite (1946).

    Args:
        gaps: differences by seed and metric.
        spread: standard deviation of the mean difference on resampled seeds and examples, by
            metric.
    """
    number = len(gaps)
    of_seeds = gaps.sem().fillna(0.0) ** 2
    of_examples = (spread**2 - (number - 1) / number * of_seeds).clip(lower=0.0)
    variance = of_seeds + of_examples
    share = of_seeds / variance
    freedom = (number - 1) / share.where(share > 0) ** 2
    return np.sqrt(variance), freedom.fillna(np.inf)


def _differences(
    row: str,
    other: str,
    by_row: Mapping[str, pd.DataFrame],
    resampled: Resampled,
) -> pd.DataFrame:
    """Return the ``difference`` of each column, its interval, ``low`` and ``high``, and
    ``p_value``.

    Args:
        row, other: names of the rows.
        by_row: values by seed of each row.
        resampled: rows on resampled seeds and examples, if there are any.
    """
    seeds = by_row[row].index.intersection(by_row[other].index)
    ours, theirs = by_row[row].loc[seeds], by_row[other].loc[seeds]
    gaps = ours - theirs
    difference = gaps.mean(skipna=False)
    low, high = student_interval(gaps)
    p_value = 2 * t.sf(abs(difference) / gaps.sem(skipna=False), len(seeds) - 1)
    shared = tuple(sorted(seeds))
    of_both = [resampled[name] for name in (row, other) if name in resampled]
    if [each.seeds for each in of_both] == [shared, shared]:
        drawn = pd.DataFrame(of_both[0].values) - pd.DataFrame(of_both[1].values)
        # Without an interval are metrics that are not resampled: one over seeds would know these
        # test examples alone, or take overlapping splits for independent.
        error, freedom = _error(gaps, drawn.reindex(columns=gaps.columns).std())
        half = error * t.ppf(TAILS[1], freedom)
        low, high = difference - half, difference + half
        p_value = 2 * t.sf(abs(difference) / error, freedom)
    frame = pd.DataFrame({"difference": difference, "low": low, "high": high, "p_value": p_value})
    largest = np.maximum(ours.abs().max(), theirs.abs().max())
    is_constant = gaps.std() <= ROUNDING * largest  # equal but for rounding
    has_width = (frame["low"] < frame["high"]) & ~is_constant
    of_interval = ["low", "high", "p_value"]
    frame[of_interval] = frame[of_interval].where(has_width, axis=0)
    if len(seeds) == 2:  # which say too little about the spread of others
        frame["p_value"] = math.nan
    return frame
