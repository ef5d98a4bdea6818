"""Statistics over seeds: means, standard deviations, paired differences to a baseline, the best of each column."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from probattn.experiments.evaluation.metric_display import COLUMNS, MetricDisplay, best_of, displays

CONFIDENCE = 0.95
"""Confidence level of the intervals."""

MetricsBySeed = Mapping[str, Mapping[int, Mapping[str, float]]]
"""Row → seed → metric → value, unscaled."""


@dataclass(frozen=True)
class Cell:
    """One metric of one row, unscaled.

    Args:
        values: the value of each seed that has the metric.
        mean: their mean; NaN without a value, or if one is not finite.
        std: their sample standard deviation (n − 1 in the denominator); None for fewer than two.
        difference: mean of this row minus its baseline over the seeds that both have; None without such seeds.
        low, high: 95 % interval of the difference, Student's t on the paired differences; None for fewer than two
            seeds, or if all differences are equal, whose interval would have no width.
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
        return self.low is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Comparison:
    """Rows compared over their seeds; the source of all tables and figures of a comparison.

    Args:
        metrics: the columns in their order, with their display.
        groups: heading → rows in their order; a single heading "" without groups.
        baselines: row → the row that it is compared with; rows without one are left out.
        cells: row → metric → cell.
        best: metric → the rows with the best displayed mean of their group; none if fewer than two rows of a group
            have a mean, or if all are equal.
        note: sentences below its table, in addition to those on its numbers.
    """

    metrics: Mapping[str, MetricDisplay]
    groups: Mapping[str, tuple[str, ...]]
    baselines: Mapping[str, str]
    cells: Mapping[str, Mapping[str, Cell]]
    best: Mapping[str, frozenset[str]]
    note: str = ""

    @property
    def rows(self) -> tuple[str, ...]:
        """All rows, group by group."""
        return tuple(row for group in self.groups.values() for row in group)


def compare(
    scores: MetricsBySeed,
    *,
    baselines: Mapping[str, str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    metrics: Mapping[str, MetricDisplay] | None = None,
) -> Comparison:
    """Aggregate the scores of several rows over their seeds.

    Args:
        scores: row → seed → metric → value, unscaled, as `inference.metrics.evaluate` returns them.
        baselines: row → the row to subtract from it, seed by seed, such as its softmax twin.
        groups: heading → its rows; the best is marked within a group. None is one group of all rows.
        metrics: the columns; None takes those of :data:`COLUMNS` that any row has.

    Raises:
        ValueError: nothing to compare, an unknown baseline, or groups that do not hold each row once.
    """
    if not scores or not all(scores.values()):
        raise ValueError("a comparison needs at least one row, and at least one seed in each")
    if metrics is None:
        known = {key for seeds in scores.values() for run in seeds.values() for key in run}
        metrics = {key: metric for key, metric in displays(known).items() if key in known}
    if not metrics:
        raise ValueError(f"no row has any of {', '.join(COLUMNS)}: name the columns with metrics=")
    baselines, groups = dict(baselines or {}), {name: tuple(rows) for name, rows in (groups or {"": scores}).items()}
    _check(scores, baselines, groups)
    cells = {row: {key: _cell(scores, row, baselines.get(row), key) for key in metrics} for row in scores}
    return Comparison(dict(metrics), groups, baselines, cells, _best(cells, groups, metrics))


def select(comparison: Comparison, rows: Collection[str]) -> Comparison:
    """Return the comparison of some of the rows: the best is the best of these; cells of baselines stay."""
    groups = {name: tuple(row for row in group if row in rows) for name, group in comparison.groups.items()}
    groups = {name: group for name, group in groups.items() if group}
    baselines = {row: other for row, other in comparison.baselines.items() if row in rows}
    kept = {row: cells for row, cells in comparison.cells.items() if row in rows or row in baselines.values()}
    best = _best(kept, groups, comparison.metrics)
    return replace(comparison, groups=groups, baselines=baselines, cells=kept, best=best)


def _best(
    cells: Mapping[str, Mapping[str, Cell]],
    groups: Mapping[str, Sequence[str]],
    metrics: Mapping[str, MetricDisplay],
) -> dict[str, frozenset[str]]:
    """Return, by metric, the rows with the best displayed mean of their group."""
    return {
        key: frozenset().union(
            *(best_of({row: cells[row][key].mean for row in rows}, metric) for rows in groups.values())
        )
        for key, metric in metrics.items()
    }


def _cell(scores: MetricsBySeed, row: str, baseline: str | None, key: str) -> Cell:
    values = _by_seed(scores[row], key)
    mean, std = _mean_and_std(list(values.values()))
    if baseline is None:
        return Cell(tuple(values.values()), mean, std)
    others = _by_seed(scores[baseline], key)
    shared = [seed for seed in values if seed in others]
    pairs = np.array([(values[seed], others[seed]) for seed in shared]).reshape(-1, 2)
    return Cell(tuple(values.values()), mean, std, *_paired(pairs))


def _by_seed(seeds: Mapping[int, Mapping[str, float]], key: str) -> dict[int, float]:
    return {seed: float(run[key]) for seed, run in seeds.items() if key in run}


def _mean_and_std(values: Sequence[float] | np.ndarray) -> tuple[float, float | None]:
    if not len(values) or not np.isfinite(values).all():
        return math.nan, None
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def _paired(pairs: np.ndarray) -> tuple[float | None, float | None, float | None]:
    mean, std = _mean_and_std(pairs[:, 0] - pairs[:, 1])
    if math.isnan(mean):
        return None, None, None
    if std is None or std <= 1e-12 * np.abs(pairs).max():  # equal but for rounding
        return mean, None, None
    n = len(pairs)
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * std / math.sqrt(n)
    return mean, mean - half, mean + half


def _check(scores: MetricsBySeed, baselines: Mapping[str, str], groups: Mapping[str, Sequence[str]]) -> None:
    for row, baseline in baselines.items():
        if row not in scores or baseline not in scores or row == baseline:
            raise ValueError(f"row {row!r} cannot have baseline {baseline!r}: the rows are {', '.join(scores)}")
    grouped = [row for rows in groups.values() for row in rows]
    if sorted(grouped) != sorted(scores):
        raise ValueError(f"groups must hold each of {', '.join(scores)} once, got {', '.join(grouped)}")
