"""Tables of texts, from comparisons over seeds and from other numbers, for the terminal, Markdown
and LaTeX."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from probattn.experiments.displayable import displayable
from probattn.experiments.evaluation import metric_display as display
from probattn.experiments.evaluation.seed_statistics import CONFIDENCE, Cell, Comparison

# LaTeX reads a bracket or star at the start of a row as an option of the \\ before it.
TEX = str.maketrans(
    {character: rf"\{character}" for character in "{}$&#_%"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
    }
    | {
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "[": "{[}",
        "]": "{]}",
        "*": "{*}",
        "–": "--",
        "³": "$^3$",
    }
    | {"×": r"$\times$", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}
)


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


def plain_table(
    columns: Iterable[str], rows: Iterable[Sequence[object]], *, note: str = ""
) -> Table:
    """Return a table of texts and numbers, which keep three digits; the first column has the names
    of the rows."""
    texts = [
        [value if isinstance(value, str) else display.format_number(value) for value in row]
        for row in rows
    ]
    return Table(pd.DataFrame(texts, columns=list(columns), dtype=object), note)


def comparison_table(comparison: Comparison, *, corner: str = "method") -> Table:
    """Return the table of a comparison: mean ± standard deviation, and below it the interval of the
    difference.

    ``corner`` is the heading of the names.
    """
    rows: list[list[str]] = []
    best = comparison.best
    for group, names in comparison.groups.items():
        rows += [[Bold(group), *[""] * len(comparison.metrics)]] if group else []
        for name in names:
            cells = [
                (comparison.cells[name][key], metric.scale)
                for key, metric in comparison.metrics.items()
            ]
            marks = [Bold if name in best[key] else str for key in comparison.metrics]
            rows.append(
                [name, *(mark(_value(*cell)) for mark, cell in zip(marks, cells, strict=True))]
            )
            if name in comparison.baselines:
                rows.append(
                    [f"minus {comparison.baselines[name]}", *(_difference(*cell) for cell in cells)]
                )
    shown = [cell for cells in comparison.cells.values() for cell in cells.values()]
    counts = [cell.n for cell in shown if cell.n]
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    note = "One seed." if seeds == "1" else f"Mean ± standard deviation over {seeds} seeds."
    if any(cell.low is not None for cell in shown):
        note += (
            f" In brackets the {100 * CONFIDENCE:g} % interval of the paired difference, "
            "* where it excludes 0."
        )
    if any(best.values()):
        note += (
            " The best of each group is bold."
            if len(comparison.groups) > 1
            else " The best is bold."
        )
    columns = (corner, *map(display.heading, comparison.metrics.values()))
    return plain_table(columns, rows, note=f"{note} {comparison.note}".strip())


def terminal(table: Table) -> RichTable:
    """Return a table for the terminal, whose names and numbers fold."""
    note = Text(displayable(table.note)) if table.note else None
    rich = RichTable(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, caption=note, caption_justify="left"
    )
    for place, name in enumerate(table.frame.columns):
        heading = displayable(name).replace(" ", "\n", 1) if place else displayable(name)
        rich.add_column(Text(heading), justify="right" if place else "left", overflow="fold")
    for row in table.frame.itertuples(index=False, name=None):
        rich.add_row(
            *(Text(displayable(text), "bold" if isinstance(text, Bold) else "") for text in row)
        )
    return rich


def markdown(table: Table) -> str:
    """Return a table in GitHub's Markdown, with its note below."""
    columns = list(map(_markdown, table.frame.columns))
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    lines += [
        [_markdown(text) for text in row] for row in table.frame.itertuples(index=False, name=None)
    ]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{text}\n{_markdown(table.note)}\n" if table.note else text


def latex(table: Table) -> str:
    r"""Return a LaTeX ``tabular``, which needs ``\usepackage{booktabs}``, with its note in a
    comment above."""
    frame = table.frame.map(_latex)
    frame.columns = list(map(_latex, frame.columns))
    form = "l" + "r" * (len(frame.columns) - 1)
    note = f"% {' '.join(displayable(table.note).split())}\n" if table.note else ""
    return note + frame.to_latex(index=False, escape=False, column_format=form)


def _value(cell: Cell, scale: float) -> str:
    spread = "" if cell.std is None else f" ± {display.format_value(cell.std, scale)}"
    return display.format_value(cell.mean, scale) + spread


def _difference(cell: Cell, scale: float) -> str:
    if cell.low is None or cell.high is None:
        return "" if cell.difference is None else f"{scale * cell.difference:+z.2f}"
    ends = ", ".join(display.format_value(end, scale) for end in (cell.low, cell.high))
    return f"[{ends}]{'*' if cell.significant else ''}"


def _markdown(text: str) -> str:
    plain = displayable(" ".join(text.split()))
    escaped = "".join(
        f"\\{character}" if character in "\\`*_{}[]<>|#~&$" else character for character in plain
    )
    return f"**{escaped}**" if isinstance(text, Bold) else escaped


def _latex(text: str) -> str:
    escaped = re.sub(
        r"(?<!\S)(\{\[\})?-(?=\d)", r"\1$-$", displayable(" ".join(text.split())).translate(TEX)
    )
    return rf"\textbf{{{escaped}}}" if isinstance(text, Bold) else escaped
