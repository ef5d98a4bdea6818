"""Tables of formatted texts in pandas frames, from comparisons over seeds and from other numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from probattn.experiments.evaluation import metric_display as display
from probattn.experiments.evaluation.seed_statistics import CONFIDENCE, Cell, Comparison


class Bold(str):
    """Text in bold: the best of its column, or the heading of a group of rows."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Table:
    """A table of texts.

    Args:
        frame: texts, the first column with the names of the rows.
        note: sentences below the table.
    """

    frame: pd.DataFrame
    note: str = ""


def plain_table(columns: Iterable[str], rows: Iterable[Sequence[object]], *, note: str = "") -> Table:
    """Return a table of texts and numbers, which keep three digits; the first column has the names of the rows."""
    texts = [[value if isinstance(value, str) else display.format_number(value) for value in row] for row in rows]
    return Table(pd.DataFrame(texts, columns=list(columns), dtype=object), note)


def comparison_table(comparison: Comparison, *, corner: str = "method") -> Table:
    """Return the table of a comparison: mean ± standard deviation, and below it the interval of the difference.

    ``corner`` is the heading of the names.
    """
    rows: list[list[str]] = []
    best = comparison.best
    for group, names in comparison.groups.items():
        rows += [[Bold(group), *[""] * len(comparison.metrics)]] if group else []
        for name in names:
            cells = [(comparison.cells[name][key], metric.scale) for key, metric in comparison.metrics.items()]
            marks = [Bold if name in best[key] else str for key in comparison.metrics]
            rows.append([name, *(mark(_value(*cell)) for mark, cell in zip(marks, cells, strict=True))])
            if name in comparison.baselines:
                rows.append([f"minus {comparison.baselines[name]}", *(_difference(*cell) for cell in cells)])
    counts = [cell.n for cells in comparison.cells.values() for cell in cells.values() if cell.n]
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    note = "One seed." if seeds == "1" else f"Mean ± standard deviation over {seeds} seeds."
    if comparison.baselines:
        note += f" In brackets the {100 * CONFIDENCE:g} % interval of the paired difference, * where it excludes 0."
    if any(best.values()):
        note += " The best of each group is bold." if len(comparison.groups) > 1 else " The best is bold."
    columns = (corner, *map(display.heading, comparison.metrics.values()))
    return plain_table(columns, rows, note=f"{note} {comparison.note}".strip())


def _value(cell: Cell, scale: float) -> str:
    spread = "" if cell.std is None else f" ± {display.format_value(cell.std, scale)}"
    return display.format_value(cell.mean, scale) + spread


def _difference(cell: Cell, scale: float) -> str:
    if cell.low is None:
        return "" if cell.difference is None else f"{scale * cell.difference:+z.2f}"
    ends = ", ".join(display.format_value(end, scale) for end in (cell.low, cell.high))
    return f"[{ends}]{'*' if cell.significant else ''}"
