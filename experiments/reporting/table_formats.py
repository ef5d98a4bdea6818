"""Renderers of tables: for the terminal, and as Markdown, LaTeX and CSV files."""

from __future__ import annotations

import csv as csv_format
import io
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from probattn.experiments.displayable import displayable
from probattn.experiments.evaluation.metric_display import MISSING
from probattn.experiments.evaluation.seed_statistics import Comparison
from probattn.experiments.reporting.table import Entry, Grid, Table, to_table
from probattn.inference.io.files import write_bytes


def terminal(table: Table) -> RichTable:
    """Return a table for the terminal: names fold at spaces on a narrow one, numbers and intervals do not.

    A baseline that all rows share is in the note alone.
    """
    rich = RichTable(
        caption=Text(displayable(table.note), style="table.caption") if table.note else None, caption_justify="left"
    )
    rich.add_column(Text(displayable(table.corner)), overflow="fold")
    for at, column in enumerate(table.columns):
        heading = Text(f"{displayable(column.title)} {column.arrow}".strip())
        if column.unit:
            heading.append(f"\n{column.unit}")
        cells = [heading, *(_rich_entry(row.entries[at]) for _, rows in table.groups for row in rows)]
        width = max(cell_len(line) for cell in cells for line in cell.plain.split("\n"))
        rich.add_column(heading, justify="right", no_wrap=True, min_width=width)
    several = len(table.baselines) > 1
    for heading, rows in table.groups:
        if heading:
            rich.add_row(Text(displayable(heading), style="italic"))
        for row in rows:
            against = f"\n  vs {displayable(row.baseline)}" if row.baseline and several else ""
            rich.add_row(Text(displayable(row.name) + against), *map(_rich_entry, row.entries))
        rich.add_section()
    return rich


def terminal_parts(table: Table, *, width: int) -> list[RichTable]:
    """Return a table as the fewest tables that fit a terminal of ``width`` characters, each with some of the columns.

    A table with names too long for that is returned whole.
    """
    count = len(table.columns)
    for number in range(1, count + 1):
        parts = [terminal(part) for part in table.split(size=math.ceil(count / number))]
        if all(_minimum_width(part) <= width for part in parts):
            return parts
    return [terminal(table)]


def _minimum_width(table: RichTable) -> int:
    """Return the number of characters that a table needs without spaces beside its lines."""
    padding, table.padding = table.padding, 0
    minimum = Console(width=10_000).measure(table).minimum
    table.padding = padding
    return minimum


def markdown(table: Table) -> str:
    """Return a table in GitHub's Markdown, with its note below."""
    titles = [_md(" ".join(filter(None, (column.title, column.unit, column.arrow)))) for column in table.columns]
    lines = [[_md(table.corner), *titles], ["---", *["---:"] * len(titles)]]
    for heading, rows in table.groups:
        if heading:
            lines.append([f"*{_md(heading)}*", *[""] * len(titles)])
        for row in rows:
            name = _md(row.name) + (f"<br>vs {_md(row.baseline)}" if row.baseline else "")
            lines.append([name, *map(_md_entry, row.entries)])
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{text}\n{_md(table.note)}\n" if table.note else text


def latex(table: Table) -> str:
    r"""Return a LaTeX ``tabular`` (it needs ``\usepackage{booktabs}``), with its note in a comment above."""
    count = len(table.columns)
    titles = [_tex(column.title) + _ARROWS[column.arrow] for column in table.columns]
    parts = [f"% {displayable(line)}" for line in table.note.splitlines()]
    parts += [rf"\begin{{tabular}}{{l{'r' * count}}}", r"\toprule", _tex_row(_tex(table.corner), titles)]
    units = [_UNITS.get(column.unit) or _tex(column.unit) for column in table.columns]
    if any(units):
        parts.append(_tex_row("", units))
    for heading, rows in table.groups:
        parts.append(r"\midrule")
        if heading:
            parts.append(rf"\multicolumn{{{count + 1}}}{{l}}{{\emph{{{_tex(heading)}}}}} \\")
        for row in rows:
            parts.append(_tex_row(_tex(row.name), map(_tex_entry, row.entries)))
            if row.baseline:
                differences = map(_tex_difference, row.entries)
                parts.append(_tex_row(rf"\quad vs.\ {_tex(row.baseline)}", differences))
    return "\n".join([*parts, r"\bottomrule", r"\end{tabular}", ""])


def csv(source: Comparison | Grid) -> str:
    """Return the numbers of a comparison or a grid as CSV, unscaled and in full precision; missing ones are empty.

    A comparison has a line per row and metric: group, row, metric, n, mean, std, baseline, difference, low, high.
    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    file = io.StringIO()
    writer = csv_format.writer(file, lineterminator="\n")
    if isinstance(source, Grid):
        writer.writerow(map(csv_text, (source.corner, *source.columns)))
        writer.writerows([csv_text(name), *map(_full, numbers)] for name, numbers in source.rows.items())
    else:
        writer.writerow(["group", "row", "metric", "n", "mean", "std", "baseline", "difference", "low", "high"])
        writer.writerows(_records(source))
    return file.getvalue()


def save(path: Path, source: Comparison | Grid) -> list[Path]:
    """Write a comparison or a grid to ``path`` with the suffixes .md, .tex and .csv; return these paths."""
    table = to_table(source)
    texts = {".md": markdown(table), ".tex": latex(table), ".csv": csv(source)}
    paths = [path.with_name(path.name + suffix) for suffix in texts]
    for each, text in zip(paths, texts.values(), strict=True):
        write_bytes(each, text.encode())
    return paths


def _records(source: Comparison) -> Iterator[list[object]]:
    for heading, rows in source.groups.items():
        for row in rows:
            for key, cell in source.cells[row].items():
                paired = map(_full, (cell.difference, cell.low, cell.high))
                texts = map(csv_text, (heading, row, key))
                baseline = csv_text(source.baselines.get(row, ""))
                yield [*texts, cell.n, _full(cell.mean), _full(cell.std), baseline, *paired]


def _full(value: float | None) -> str:
    return "" if value is None or value != value else repr(float(value))


_FORMULA = tuple("=+-@＝＋－＠")
"""First characters of formulas; spreadsheets take full-width ones for the others."""


def csv_text(text: str) -> str:
    """Return a text as CSV files have it: displayable, with an apostrophe before what looks like a formula."""
    shown = displayable(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


def _rich_entry(entry: Entry) -> Text:
    text = Text().append(displayable(entry.text), style="bold" if entry.best else "")
    if entry.spread:
        text.append(f" ±{entry.spread}")
    if entry.difference:
        text.append(f"\n{entry.difference}{'*' if entry.significant else ''}", style="dim")
    return text


def _md(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>|#~&$" else c for c in displayable(" ".join(text.split())))


def _md_entry(entry: Entry) -> str:
    text = f"**{_md(entry.text)}**" if entry.best else _md(entry.text)
    text += f" ± {entry.spread}" if entry.spread else ""
    return text + (f"<br>{entry.difference}{_md('*') if entry.significant else ''}" if entry.difference else "")


_ARROWS = {"": "", "↑": r" $\uparrow$", "↓": r" $\downarrow$"}
_UNITS = {"×10³": r"$\times 10^3$", "×10": r"$\times 10$"}
# LaTeX reads a bracket or star at the start of a row as an option of the \\ before it.
_TEX = str.maketrans(
    {c: rf"\{c}" for c in "{}$&#_%"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "[": "{[}", "*": "{*}", "–": "--", "×": r"$\times$"}
)


def _tex(text: str) -> str:
    return displayable(" ".join(text.split())).translate(_TEX)


def _tex_row(name: str, cells: Iterable[str]) -> str:
    return rf"{' & '.join([name, *cells])} \\"


def _tex_entry(entry: Entry) -> str:
    if entry.text == MISSING:
        return "--"
    number = rf"\mathbf{{{entry.text}}}" if entry.best else entry.text
    return f"${number} \\pm {entry.spread}$" if entry.spread else f"${number}$"


def _tex_difference(entry: Entry) -> str:
    return rf"\scriptsize ${entry.difference}{'^{*}' if entry.significant else ''}$" if entry.difference else ""
