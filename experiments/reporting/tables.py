"""Tables of texts, from comparisons over seeds and from other numbers, for the terminal, Markdown
and LaTeX."""

import math
import re
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from probattn.experiments.displayable import displayable
from probattn.experiments.evaluation import metric_display as display
from probattn.experiments.evaluation.seed_statistics import CONFIDENCE, Cell, Comparison

# LaTeX reads a bracket or star at the start of a row as an option of the \\ before it.
TEX = str.maketrans(
    {character: f"\\{character}" for character in "{}$&#_%"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "[": "{[}",
        "]": "{]}",
        "*": "{*}",
        "–": "--",
        "³": "$^3$",
        "×": r"$\times$",
        "±": r"$\pm$",
        "↑": r"$\uparrow$",
        "↓": r"$\downarrow$",
    }
)
MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>|#~&$"})


class Bold(str):
    """Text in bold: what is clearly the best of its column, or the heading of a group of rows."""

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


def plain_table(frame: pd.DataFrame) -> Table:
    """Return a table of texts and numbers, which keep three digits; the first column has the names
    of the rows."""
    return Table(frame.astype(object).map(display.format_number))


def comparison_table(comparison: Comparison, *, corner: str = "method") -> Table:
    """Return the table of a comparison: mean ± standard deviation, and below it the interval of the
    difference.

    ``corner`` is the heading of the names.
    """
    rows: list[list[str]] = []
    best = comparison.best
    for group, names in comparison.groups.items():
        if group:
            rows.append([Bold(group), *[""] * len(comparison.metrics)])
        for name in names:
            values = [name]
            differences = [f"minus {comparison.baselines.get(name)}"]
            for key, metric in comparison.metrics.items():
                cell = comparison.cells[name][key]
                value = _value(cell, metric.scale)
                values.append(Bold(value) if name in best[key] else value)
                differences.append(_difference(cell, metric.scale))
            rows.append(values)
            if name in comparison.baselines:
                rows.append(differences)
    columns = [corner, *map(display.heading, comparison.metrics.values())]
    return Table(
        pd.DataFrame(
            rows,
            columns=columns,
            dtype=object,
        ),
        _note(comparison),
    )


def divided(table: Table, number: int) -> list[Table]:
    """Return the parts of a table with its columns divided; each has the names of the rows, the
    last the note."""
    first = table.frame.columns[:1]
    groups = np.array_split(table.frame.columns[1:], number)
    parts = [Table(table.frame[[*first, *group]]) for group in groups]
    return [*parts[:-1], replace(parts[-1], note=table.note)]


def _note(comparison: Comparison) -> str:
    """Return what the numbers of a comparison are, and its own note."""
    cells = [cell for row in comparison.cells.values() for cell in row.values()]
    counts = {cell.n for cell in cells if cell.n}
    sentences = ["One seed."]
    if counts - {1}:
        seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
        sentences = [f"Mean ± standard deviation over {seeds} seeds."]
    if comparison.has_intervals:
        sentences.append(
            f"In brackets the {100 * CONFIDENCE:g} % interval of the paired difference, * where it "
            "is more than chance by Holm's correction for all of the table."
        )
    if any(comparison.best.values()):
        of_group = " of each group" if len(comparison.groups) > 1 else ""
        sentences.append(
            f"The best{of_group} is bold where its difference from the next is more than chance "
            f"(p ≤ {1 - CONFIDENCE:g}, for that pair alone)."
        )
    return " ".join([*sentences, comparison.note]).strip()


def terminal(table: Table) -> RichTable:
    """Return a table for the terminal."""
    note = Text(displayable(table.note)) if table.note else None
    rich = RichTable(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, caption=note, caption_justify="left"
    )
    first, *others = map(displayable, table.frame.columns)
    rich.add_column(Text(first))
    for name in others:
        rich.add_column(Text(name.replace(" ", "\n", 1)), justify="right")
    for row in table.frame.map(_rich).itertuples(index=False, name=None):
        rich.add_row(*row)
    return rich


def markdown(table: Table) -> str:
    """Return a table in GitHub's Markdown, with its note below."""
    rule = ["---", *["---:"] * (len(table.frame.columns) - 1)]
    rows = table.frame.map(_markdown).itertuples(index=False, name=None)
    text = ""
    for line in (map(_markdown, table.frame.columns), rule, *rows):
        text += f"| {' | '.join(line)} |\n"
    return f"{text}\n{_markdown(table.note)}\n" if table.note else text


def latex(table: Table) -> str:
    r"""Return a LaTeX ``tabular``, which needs ``\usepackage{booktabs}``, with its note in a
    comment above."""
    frame = table.frame.map(_latex)
    frame.columns = list(map(_latex, frame.columns))
    form = "l" + "r" * (len(frame.columns) - 1)
    note = f"% {_in_a_line(table.note)}\n" if table.note else ""
    return note + frame.to_latex(index=False, escape=False, column_format=form)


def _rich(text: str) -> Text:
    return Text(displayable(text), "bold" if isinstance(text, Bold) else "")


def _value(cell: Cell, scale: float) -> str:
    mean = display.format_value(cell.mean, scale)
    if math.isnan(cell.std):
        return mean
    return f"{mean} ± {display.format_value(cell.std, scale)}"


def _difference(cell: Cell, scale: float) -> str:
    if cell.has_interval:
        ends = ", ".join(display.format_value(end, scale) for end in (cell.low, cell.high))
        star = "*" if cell.significant else ""
        return f"[{ends}]{star}"
    if math.isnan(cell.difference):
        return ""
    return f"{scale * cell.difference:+z.2f}"


def _markdown(text: str) -> str:
    escaped = _in_a_line(text).translate(MARKDOWN)
    return f"**{escaped}**" if isinstance(text, Bold) else escaped


def _latex(text: str) -> str:
    escaped = _in_a_line(text).translate(TEX)
    # A minus before a number is in mathematics, also after a bracket.
    escaped = re.sub(r"(?<!\S)(\{\[\})?-(?=\d)", r"\1$-$", escaped)
    return rf"\textbf{{{escaped}}}" if isinstance(text, Bold) else escaped


def _in_a_line(text: str) -> str:
    return displayable(" ".join(text.split()))
