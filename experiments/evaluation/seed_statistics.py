"""Statistics over seeds: means, standard deviations, paired differences to a baseline, the best of
each column."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import t

from probattn.experiments.evaluation.metric_display import COLUMNS, MetricDisplay, best_of, displays

CONFIDENCE = 0.95
"""Confidence level of the intervals."""
TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
MetricsBySeed = Mapping[str, Mapping[int, Mapping[str, float]]]
"""Row → seed → metric → value, unscaled."""
Resampled = Mapping[str, Mapping[str, np.ndarray]]
"""Row → metric → its values on resampled test examples, the same examples for all rows."""


@dataclass(frozen=True)
class Cell:
    """One metric of one row, unscaled.

    Args:
        values: the value of each seed that has the metric.
        mean: their mean; NaN without a value, or if one is not finite.
        std: their sample standard deviation (n − 1 in the denominator); None for fewer than two.
        difference: mean of this row minus its baseline over the seeds that both have; None without
            such seeds.
        low, high: 95 % interval of the difference; None without one, or if it would have no width.
    """

    values: tuple[float, ...]
    mean: float
    std: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def n(self) -> int:
        """Number of seeds."""
        return len(self.values)

    @property
    def significant(self) -> bool:
        """True if the interval of the difference excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Comparison:
    """Rows compared over their seeds; the source of all tables and figures of a comparison.

    Args:
        metrics: the columns in their order, with their display.
        groups: heading → rows in their order; a single heading "" without groups.
        baselines: row → the row that it is compared with; rows without one are left out.
        cells: row → metric → cell.
        note: sentences below its table, in addition to those on its numbers.
    """

    metrics: Mapping[str, MetricDisplay]
    groups: Mapping[str, tuple[str, ...]]
    baselines: Mapping[str, str]
    cells: Mapping[str, Mapping[str, Cell]]
    note: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        """All rows, group by group."""
        return tuple(row for group in self.groups.values() for row in group)

    @property
    def best(self) -> dict[str, frozenset[str]]:
        """Metric → the rows with the best displayed mean of their group.

        None are best if fewer than two rows of a group have a mean, or if all are equal.
        """
        best = {}
        for key, metric in self.metrics.items():
            groups = (
                {row: self.cells[row][key].mean for row in rows} for rows in self.groups.values()
            )
            best[key] = frozenset().union(*(best_of(means, metric) for means in groups))
        return best


def compare(
    scores: MetricsBySeed,
    *,
    baselines: Mapping[str, str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    metrics: Mapping[str, MetricDisplay] | None = None,
    resampled: Resampled | None = None,
    note: str = "",
) -> Comparison:
    """Aggregate the scores of several rows over their seeds.

    Intervals of differences are Student's t on the seeds that a row and its baseline share; with a
    single one, percentiles of the differences on resampled test examples.

    Args:
        scores: row → seed → metric → value, unscaled, as `inference.metrics.evaluate` returns them.
        baselines: row → the row to subtract from it, seed by seed, such as its softmax twin.
        groups: heading → its rows; the best is marked within a group, and rows of no group are left
            out. None is one group of all rows.
        metrics: the columns; None takes those of :data:`COLUMNS` that any row has.
        resampled: values on resampled test examples.
        note: sentences below the table.

    Raises:
        ValueError: no row has any of the metrics.
        KeyError: an unknown baseline.
    """
    known = {key for seeds in scores.values() for run in seeds.values() for key in run}
    metrics = metrics or {key: metric for key, metric in displays(known).items() if key in known}
    if not metrics:
        raise ValueError(f"no row has any of {', '.join(COLUMNS)}: name the columns with metrics=")
    baselines, resampled = dict(baselines or {}), resampled or {}
    rows_of = {name: tuple(rows) for name, rows in (groups or {"": tuple(scores)}).items()}
    cells = {
        row: {key: _cell(scores, row, baselines.get(row), key, resampled) for key in metrics}
        for row in scores
    }
    return Comparison(dict(metrics), rows_of, baselines, cells, note)


def _cell(
    scores: MetricsBySeed, row: str, baseline: str | None, key: str, resampled: Resampled
) -> Cell:
    ours, theirs = (
        {seed: float(run[key]) for seed, run in runs.items() if key in run}
        for runs in (scores[row], scores[baseline] if baseline else {})
    )
    cell = Cell(tuple(ours.values()), *_mean_and_std(np.array([*ours.values()])))
    pairs = np.array([(ours[seed], theirs[seed]) for seed in ours if seed in theirs]).reshape(-1, 2)
    difference, spread = _mean_and_std(pairs[:, 0] - pairs[:, 1])
    if math.isnan(difference):
        return cell
    low = high = difference
    if (
        baseline
        and len(pairs) == 1
        and all(key in resampled.get(name, {}) for name in (row, baseline))
    ):
        low, high = np.nanquantile(resampled[row][key] - resampled[baseline][key], TAILS).tolist()
    elif spread is not None and spread > 1e-12 * np.abs(pairs).max():  # not equal but for rounding
        low, high = map(
            float,
            t.interval(CONFIDENCE, len(pairs) - 1, difference, spread / math.sqrt(len(pairs))),
        )
    has_width = low < high
    return replace(
        cell,
        difference=difference,
        low=low if has_width else None,
        high=high if has_width else None,
    )


def _mean_and_std(values: np.ndarray) -> tuple[float, float | None]:
    if not len(values) or not np.isfinite(values).all():
        return math.nan, None
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
