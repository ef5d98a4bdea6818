"""What a table says, before any markup: from a comparison or a plain matrix to texts, the best of them marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probattn.experiments.evaluation.metric_display import arrow, scale_name
from probattn.experiments.evaluation.seed_statistics import CONFIDENCE, Cell, Comparison, best_of, shown
from probattn.inference.metrics import MetricDisplay


@dataclass(frozen=True)
class Grid:
    """A matrix of numbers with names, such as accuracy by corruption and severity.

    Args:
        corner: what the rows are.
        columns: names of the columns.
        rows: name → its numbers, one a column; NaN where there is none.
        scale: the numbers are multiplied by it where they are printed (not in CSV), and the head says so.
        decimals: how many are printed.
        higher_is_better: with a direction, the best of each column is bold.
        note: a sentence for under the table.

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

    def __post_init__(self):
        for name, numbers in self.rows.items():
            if len(numbers) != len(self.columns):
                raise ValueError(f"row {name!r} has {len(numbers)} numbers for {len(self.columns)} columns")


@dataclass(frozen=True)
class Entry:
    """One number, what stands behind it (its spread) and below it (a difference, and whether that excludes 0)."""

    number: str
    spread: str = ""
    below: str = ""
    clear: bool = False
    best: bool = False


@dataclass(frozen=True)
class Line:
    """One row, and the row it is compared with, if any."""

    name: str
    entries: tuple[Entry, ...]
    baseline: str = ""


@dataclass(frozen=True)
class Head:
    """What stands above a column."""

    title: str
    arrow: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Sheet:
    """A whole table: lines in blocks, each under a heading that may be empty, and a note below."""

    corner: str
    heads: tuple[Head, ...]
    blocks: tuple[tuple[str, tuple[Line, ...]], ...]
    note: str


def sheet(table: Comparison | Grid) -> Sheet:
    """Return the texts of a table."""
    return _matrix(table) if isinstance(table, Grid) else _compared(table)


def note(table: Comparison) -> str:
    """Return the sentences that explain a comparison's table."""
    counts = sorted({cell.n for cells in table.cells.values() for cell in cells.values()} - {0})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    parts = [f"Mean ± standard deviation over {seeds} seeds." if counts[-1] > 1 else "One seed."]
    if table.baselines:
        percent = f"{100 * CONFIDENCE:g} %"
        parts.append(f"In brackets the {percent} interval of the paired difference to the row named, * where it")
        parts.append("excludes 0; a difference without an interval has its sign.")
    if any(table.best.values()):
        parts.append("The best of each group is bold." if len(table.groups) > 1 else "The best is bold.")
    return " ".join(parts)


def _matrix(grid: Grid) -> Sheet:
    winners, sign = [frozenset()] * len(grid.columns), ""
    if grid.higher_is_better is not None:
        metric = MetricDisplay("", grid.scale, grid.higher_is_better)
        columns = ({row: values[at] for row, values in grid.rows.items()} for at in range(len(grid.columns)))
        winners, sign = [best_of(column, metric, grid.decimals) for column in columns], arrow(metric)
    heads = tuple(Head(name, sign, scale_name(grid.scale)) for name in grid.columns)
    lines = []
    for row, values in grid.rows.items():
        texts = (shown(float(value), grid.scale, grid.decimals) for value in values)
        entries = (Entry(text, best=row in won) for text, won in zip(texts, winners, strict=True))
        lines.append(Line(row, tuple(entries)))
    return Sheet(grid.corner, heads, (("", tuple(lines)),), grid.note)


def _compared(table: Comparison) -> Sheet:
    heads = tuple(Head(metric.title, arrow(metric), scale_name(metric.scale)) for metric in table.metrics.values())
    blocks = tuple((heading, tuple(_line(table, row) for row in rows)) for heading, rows in table.groups.items())
    return Sheet("method", heads, blocks, note(table))


def _line(table: Comparison, row: str) -> Line:
    cells = table.cells[row]
    entries = (_entry(cells[key], metric.scale, row in table.best[key]) for key, metric in table.metrics.items())
    return Line(row, tuple(entries), table.baselines.get(row, ""))


def _entry(cell: Cell, scale: float, best: bool) -> Entry:
    spread = "" if cell.std is None else shown(cell.std, scale)
    below = ""
    if cell.low is not None:
        below = f"[{shown(cell.low, scale)}, {shown(cell.high, scale)}]"
    elif cell.difference is not None:
        text = shown(cell.difference, scale)
        below = text if text.startswith("-") else f"+{text}"
    return Entry(shown(cell.mean, scale), spread, below, cell.clear, best)
