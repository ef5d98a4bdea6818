"""Our numbers beside a paper's: differences with intervals, tables as Markdown and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtrit

from probattn.experiments.evaluation.metric_display import MISSING, format_value, unit
from probattn.experiments.evaluation.seed_statistics import CONFIDENCE, Cell, MetricsBySeed, compare
from probattn.experiments.reporting.tables import Table, heading, plain_table
from probattn.experiments.studies.entries import Column, Part
from probattn.experiments.studies.paper_tables import PaperValue

Interval = Literal["", "welch", "own seeds"]


@dataclass(frozen=True)
class Difference:
    """Our mean minus the paper's, in the paper's unit.

    Args:
        value: the difference.
        low, high: 95 % interval; None without one.
        interval: ``welch``, from the standard deviations of our seeds and of the paper's trials; ``own seeds``, from
            ours alone, where the paper gives none: its number then counts as exact; or none, for a single seed.
    """

    value: float
    low: float | None = None
    high: float | None = None
    interval: Interval = ""

    @property
    def is_significant(self) -> bool:
        """True if the interval excludes 0."""
        return self.low is not None and (self.low > 0 or self.high < 0)


def difference(cell: Cell, paper: PaperValue, *, scale: float, trials: int | None) -> Difference:
    """Return the difference of our seeds to a number of the paper, which are not paired.

    Args:
        cell: our number, unscaled.
        paper: the paper's number, in its unit.
        scale: factor of the paper's unit.
        trials: the paper's number of seeds, if it is given.
    """
    value = scale * cell.mean - paper.mean
    if cell.std is None or not math.isfinite(value):
        return Difference(value)
    own = (scale * cell.std) ** 2 / cell.n
    others = paper.std**2 / trials if paper.std is not None and trials else 0.0
    freedom = cell.n - 1
    if others:
        freedom = (own + others) ** 2 / (own**2 / (cell.n - 1) + others**2 / (trials - 1))
    if own + others == 0:
        return Difference(value)
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(own + others)
    return Difference(value, value - half, value + half, "welch" if others else "own seeds")


@dataclass(frozen=True)
class Compared:
    """A block: our cells by row and column, and the differences to the paper where it has a number.

    Args:
        part: the block.
        cells: row → key of a column → our cell, with the paired difference to the baseline.
        differences: row → key of a column → difference to the paper.
    """

    part: Part
    cells: dict[str, dict[str, Cell]]
    differences: dict[str, dict[str, Difference]]


def compare_part(part: Part, scores: MetricsBySeed, *, trials: int | None, with_paper: bool = True) -> Compared:
    """Compare a block's numbers with the paper's, unless they are of a reduced size."""
    baselines = {row: part.baseline for row in scores if part.baseline in scores and row != part.baseline}
    singles = {row: base for row, base in baselines.items() if not part.rows[row].is_ensemble}
    metrics = {column.key: column.display for column in part.columns}
    cells = {row: dict(each) for row, each in compare(scores, baselines=singles, metrics=metrics).cells.items()}
    differences: dict[str, dict[str, Difference]] = {row: {} for row in cells}
    for row, column in _comparable(part, cells) if with_paper else ():
        paper, cell = part.paper_row(row)[column.key], cells[row][column.key]
        own_trials = None if part.rows[row].is_ensemble else trials
        differences[row][column.key] = difference(cell, paper, scale=column.display.scale, trials=own_trials)
    return Compared(part, cells, differences)


def tables(compared: Compared) -> list[Table]:
    """Return the table of our numbers beside the paper's, and that of the differences to the baseline, if any."""
    part, rows, effects = compared.part, [], []
    for row, cells in compared.cells.items():
        own = tuple(
            _own(cells[column.key], compared.differences[row].get(column.key), column) for column in part.columns
        )
        paper = part.paper_row(row)
        against = "the paper" if compared.differences[row] else ""
        rows += [(row, *own)] + _paper_rows(row, part, paper if against else {})
        if any(cell.difference is not None for cell in cells.values()):
            effects.append((row, *(_effect(cells[column.key], column) for column in part.columns)))
            if against and part.paper_row(part.baseline):
                effects.append((f"{row}, the paper", *_paper_effects(part, row)))
    headings = [heading(each.display) for each in part.columns]
    percent = f"{100 * CONFIDENCE:g} %"
    found = [plain_table(("method", *headings), rows, note=_note(compared, percent))]
    if effects:
        note = (
            f"Mean difference of our runs to {part.baseline}, with its {percent} interval, paired by seed; * where it"
        )
        note += " excludes 0."
        if any(compared.differences.values()):
            note += " The paper's are differences of its means."
        found.append(plain_table((f"difference to {part.baseline}", *headings), effects, note=note))
    return found


CSV_HEADER = (
    "block", "row", "metric", "unit", "seeds", "mean", "std", "paper_mean", "paper_std", "difference", "low", "high",
    "interval", "baseline", "to_baseline", "baseline_low", "baseline_high", "paper_to_baseline",
)  # fmt: skip


def csv_text(compared: list[Compared]) -> str:
    """Return all numbers, in the paper's units, with a line for each row and column."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for each in compared:
        writer.writerows(_records(each))
    return file.getvalue()


def _records(compared: Compared) -> Iterator[list[object]]:
    part = compared.part
    for row, cells in compared.cells.items():
        effects = dict(zip((each.key for each in part.columns), _paper_effects(part, row), strict=True))
        for column in part.columns:
            cell, scale = cells[column.key], column.display.scale
            apart = compared.differences[row].get(column.key)
            paper = part.paper_row(row).get(column.key) if apart else None
            numbers = [scale * cell.mean, None if cell.std is None else scale * cell.std]
            numbers += [paper.mean, paper.std] if paper else [None, None]
            numbers += [apart.value, apart.low, apart.high] if apart else [None] * 3
            own = [None if each is None else scale * each for each in (cell.difference, cell.low, cell.high)]
            baseline = part.baseline if cell.difference is not None else ""
            effect = effects[column.key] if apart and baseline and effects[column.key] != MISSING else ""
            yield [
                *(part.title, row, column.key, unit(scale), cell.n, *map(_full, numbers)),
                *(apart.interval if apart else "", baseline, *map(_full, own), effect),
            ]


def _comparable(part: Part, cells: dict[str, dict[str, Cell]]) -> Iterator[tuple[str, Column]]:
    for row, own in cells.items():
        for column in part.columns:
            if column.comparable and column.key in part.paper_row(row) and math.isfinite(own[column.key].mean):
                yield row, column


def _own(cell: Cell, apart: Difference | None, column: Column) -> str:
    scale, decimals = column.display.scale, decimals_of(column)
    spread = "" if cell.std is None else f" ± {format_value(cell.std, scale, decimals)}"
    star = "*" if apart and apart.is_significant else ""
    return f"{format_value(cell.mean, scale, decimals)}{spread} {_interval(apart, decimals)}{star}".strip()


def _effect(cell: Cell, column: Column) -> str:
    if cell.difference is None:
        return MISSING
    scale, decimals = column.display.scale, decimals_of(column)
    interval = (
        "" if cell.low is None else ", ".join(format_value(each, scale, decimals) for each in (cell.low, cell.high))
    )
    interval = f" [{interval}]{'*' if cell.significant else ''}" if interval else ""
    return _signed(scale * cell.difference, decimals) + interval


def paper_cell(value: PaperValue | None, decimals: int) -> str:
    """Return a number of the paper as a cell."""
    if value is None:
        return MISSING
    spread = "" if value.std is None else f" ± {format_value(value.std, 1, decimals)}"
    return format_value(value.mean, 1, decimals) + spread


def _paper_rows(row: str, part: Part, paper: Mapping[str, PaperValue]) -> list[tuple[str, ...]]:
    cells = tuple(paper_cell(paper.get(column.key), decimals_of(column)) for column in part.columns)
    return [(f"{row}, the paper", *cells)] if paper else []


def _paper_effects(part: Part, row: str) -> list[str]:
    """Return the paper's difference of a row to the baseline in each column, as text."""
    own, base = part.paper_row(row), part.paper_row(part.baseline) if part.baseline else {}
    both = [(own.get(column.key), base.get(column.key), decimals_of(column)) for column in part.columns]
    return [MISSING if not one or not other else _signed(one.mean - other.mean, places) for one, other, places in both]


def _interval(apart: Difference | None, decimals: int) -> str:
    if apart is None:
        return ""
    if apart.low is None:
        return _signed(apart.value, decimals)
    low, high = (format_value(each, 1, decimals) for each in (apart.low, apart.high))
    return f"{_signed(apart.value, decimals)} [{low}, {high}]"


def _signed(value: float, decimals: int) -> str:
    text = format_value(value, 1, decimals)
    return text if text.startswith(("-", MISSING)) else f"+{text}"


def decimals_of(column: Column) -> int:
    """Return the displayed decimals of a column, those of the papers."""
    return 3 if column.display.scale == 1 and column.comparable else 2


def _note(compared: Compared, percent: str) -> str:
    kinds = {each.interval for row in compared.differences.values() for each in row.values()}
    parts = ["Mean ± standard deviation over seeds."]
    if kinds:
        parts.append(
            f"Beside it the difference to the paper, in brackets its {percent} interval, * where that excludes 0:"
        )
    if "welch" in kinds:
        parts.append(
            "Welch's t, from the standard deviations of our seeds and of the paper's trials, which are not paired."
        )
    if "own seeds" in kinds:
        parts.append(
            "Where the paper gives no standard deviation or number of trials: Student's t over our seeds alone."
        )
    if "" in kinds:
        parts.append("A difference of single values has no interval.")
    return " ".join([*parts, compared.part.note]).strip()


def _full(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else repr(float(value))
