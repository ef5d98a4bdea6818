"""Tables before rendering: formatted texts with arrows, units, spreads and differences, the best of each column marked.

Renderers are in ``table_formats`` (terminal, Markdown, LaTeX, CSV) and ``templates/macros.html`` (HTML).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from probattn.experiments.evaluation.metric_display import (
    MetricDisplay,
    arrow,
    best_of,
    displays,
    format_number,
    format_value,
    unit,
)
from probattn.experiments.evaluation.seed_statistics import CONFIDENCE, Cell, Comparison


@dataclass(frozen=True)
class Grid:
    """A matrix of numbers with named rows and columns, such as accuracy by corruption and severity.

    Args:
        corner: heading of the row names.
        columns: names of the columns.
        rows: name → its numbers, one per column; NaN if missing.
        scale: factor of the displayed numbers (CSV has unscaled ones); the heading has its unit.
        decimals: displayed decimals.
        higher_is_better: with a direction, the best of each column is bold.
        note: a sentence below the table.

    Raises:
        ValueError: a row with more or fewer numbers than there are columns.
    """

    corner: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[float]]
    scale: float = 1.0
    decimals: int = 2
    higher_is_better: bool | None = None
    note: str = ""

    def __post_init__(self) -> None:
        for name, numbers in self.rows.items():
            if len(numbers) != len(self.columns):
                raise ValueError(f"row {name!r} has {len(numbers)} numbers for {len(self.columns)} columns")


@dataclass(frozen=True)
class Entry:
    """A cell: a number or text, its spread over seeds, its difference to a baseline, and how both are marked."""

    text: str
    spread: str = ""
    difference: str = ""
    significant: bool = False
    best: bool = False


@dataclass(frozen=True)
class Row:
    """A named row, and the row that it is compared with, if any."""

    name: str
    entries: tuple[Entry, ...]
    baseline: str = ""


@dataclass(frozen=True)
class Column:
    """The heading of a column."""

    title: str
    arrow: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Table:
    """A table: rows in groups, each under a heading that may be empty, and a note below."""

    corner: str
    columns: tuple[Column, ...]
    groups: tuple[tuple[str, tuple[Row, ...]], ...]
    note: str = ""

    @property
    def baselines(self) -> set[str]:
        """Names of the rows that others are compared with."""
        return {row.baseline for _, rows in self.groups for row in rows if row.baseline}

    def split(self, *, size: int) -> list[Table]:
        """Return tables of at most ``size`` columns with all rows; the last has the note."""
        starts = range(0, max(len(self.columns), 1), size)
        return [self._columns(slice(at, at + size), self.note if at == starts[-1] else "") for at in starts]

    def _columns(self, chosen: slice, note: str) -> Table:
        groups = (
            (heading, tuple(replace(row, entries=row.entries[chosen]) for row in rows)) for heading, rows in self.groups
        )
        return Table(self.corner, self.columns[chosen], tuple(groups), note)


def to_table(source: Comparison | Grid) -> Table:
    """Return the table of a comparison or a grid."""
    return _grid_table(source) if isinstance(source, Grid) else _comparison_table(source)


def metrics_table(rows: Sequence[tuple[str, Mapping[str, float]]], *, corner: str, mark_best: bool = False) -> Table:
    """Return a table of the metrics of classes or of numbers, with a row per name, which may occur more than once."""
    columns, best = [], {}
    shown = displays({key for _, row in rows for key in row})
    for key, metric in shown.items():
        columns.append(Column(metric.title, arrow(metric), unit(metric.scale)))
        best[key] = best_of({at: row.get(key, math.nan) for at, (_, row) in enumerate(rows)}, metric)
    lines = [
        Row(
            name,
            tuple(
                Entry(format_value(row.get(key, math.nan), metric.scale), best=mark_best and at in best[key])
                for key, metric in shown.items()
            ),
        )
        for at, (name, row) in enumerate(rows)
    ]
    return Table(corner, tuple(columns), (("", tuple(lines)),))


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Return a table of texts and numbers, which keep three digits; the first column has the names of the rows."""
    corner, *titles = columns
    lines = (Row(str(name), tuple(Entry(format_number(value)) for value in values)) for name, *values in rows)
    return Table(corner, tuple(map(Column, titles)), (("", tuple(lines)),))


def _grid_table(grid: Grid) -> Table:
    best, direction = [frozenset()] * len(grid.columns), ""
    if grid.higher_is_better is not None:
        metric = MetricDisplay("", grid.scale, grid.higher_is_better)
        columns = ({row: values[at] for row, values in grid.rows.items()} for at in range(len(grid.columns)))
        best, direction = [best_of(column, metric, grid.decimals) for column in columns], arrow(metric)
    rows = []
    for row, values in grid.rows.items():
        texts = (format_value(float(value), grid.scale, grid.decimals) for value in values)
        entries = (Entry(text, best=row in winners) for text, winners in zip(texts, best, strict=True))
        rows.append(Row(row, tuple(entries)))
    columns = tuple(Column(name, direction, unit(grid.scale)) for name in grid.columns)
    return Table(grid.corner, columns, (("", tuple(rows)),), grid.note)


def _comparison_table(comparison: Comparison) -> Table:
    metrics = comparison.metrics
    columns = tuple(Column(metric.title, arrow(metric), unit(metric.scale)) for metric in metrics.values())
    groups = []
    for heading, names in comparison.groups.items():
        rows = []
        for name in names:
            cells, best = comparison.cells[name], comparison.best
            entries = (_entry(cells[key], metric.scale, name in best[key]) for key, metric in metrics.items())
            rows.append(Row(name, tuple(entries), comparison.baselines.get(name, "")))
        groups.append((heading, tuple(rows)))
    return Table("method", columns, tuple(groups), _comparison_note(comparison))


def _entry(cell: Cell, scale: float, best: bool) -> Entry:
    spread = "" if cell.std is None else format_value(cell.std, scale)
    difference = ""
    if cell.low is not None:
        difference = f"[{format_value(cell.low, scale)}, {format_value(cell.high, scale)}]"
    elif cell.difference is not None:
        text = format_value(cell.difference, scale)
        difference = text if text.startswith("-") else f"+{text}"
    return Entry(format_value(cell.mean, scale), spread, difference, cell.significant, best)


def _comparison_note(comparison: Comparison) -> str:
    counts = sorted({cell.n for cells in comparison.cells.values() for cell in cells.values()} - {0})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    parts = [f"Mean ± standard deviation over {seeds} seeds." if counts[-1] > 1 else "One seed."]
    if comparison.baselines:
        percent = f"{100 * CONFIDENCE:g} %"
        baselines = set(comparison.baselines.values())
        against = baselines.pop() if len(baselines) == 1 else "the row named"
        parts.append(f"In brackets the {percent} interval of the paired difference to {against}, * where it")
        parts.append("excludes 0; a difference without an interval has its sign.")
    if any(comparison.best.values()):
        parts.append("The best of each group is bold." if len(comparison.groups) > 1 else "The best is bold.")
    return " ".join([*parts, comparison.note]).strip()
