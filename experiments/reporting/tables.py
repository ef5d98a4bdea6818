"""A comparison, or a plain matrix of numbers, as a table for the terminal, in Markdown, in LaTeX and as CSV."""

from __future__ import annotations

import csv as csv_format
import io
from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from probattn.experiments.evaluation.seed_statistics import Comparison
from probattn.experiments.reporting.sheet import Entry, Grid, sheet


def terminal(table: Comparison | Grid) -> Table:
    """Return a table for the terminal that folds at spaces where it is narrow."""
    page = sheet(table)
    result = Table(caption=page.note or None, caption_justify="left")
    result.add_column(Text(page.corner), overflow="fold")
    for head in page.heads:
        title = f"{head.title} {head.arrow}".strip()
        result.add_column(Text(f"{title}\n{head.unit}" if head.unit else title), justify="right", overflow="fold")
    for heading, lines in page.blocks:
        if heading:
            result.add_row(Text(heading, style="italic"))
        for line in lines:
            name = f"{line.name}\n  vs {line.baseline}" if line.baseline else line.name
            result.add_row(Text(name), *map(_rich, line.entries))
        result.add_section()
    return result


def markdown(table: Comparison | Grid) -> str:
    """Return a table of GitHub's Markdown, its note below it."""
    page = sheet(table)
    heads = [_md(" ".join(filter(None, (head.title, head.unit, head.arrow)))) for head in page.heads]
    rows = [[_md(page.corner), *heads], ["---", *["---:"] * len(heads)]]
    for heading, lines in page.blocks:
        if heading:
            rows.append([f"*{_md(heading)}*", *[""] * len(heads)])
        for line in lines:
            name = _md(line.name) + (f"<br>vs {_md(line.baseline)}" if line.baseline else "")
            rows.append([name, *map(_md_entry, line.entries)])
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{text}\n{_md(page.note)}\n" if page.note else text


def latex(table: Comparison | Grid) -> str:
    r"""Return a LaTeX `tabular` (it needs `\usepackage{booktabs}`), its note a comment above it."""
    page = sheet(table)
    count = len(page.heads)
    titles = [_tex(head.title) + _ARROWS[head.arrow] for head in page.heads]
    parts = [f"% {line}" for line in page.note.splitlines()]
    parts += [rf"\begin{{tabular}}{{l{'r' * count}}}", r"\toprule", _tex_row(_tex(page.corner), titles)]
    units = [_UNITS.get(head.unit) or _tex(head.unit) for head in page.heads]
    if any(units):
        parts.append(_tex_row("", units))
    for heading, lines in page.blocks:
        parts.append(r"\midrule")
        if heading:
            parts.append(rf"\multicolumn{{{count + 1}}}{{l}}{{\emph{{{_tex(heading)}}}}} \\")
        for line in lines:
            parts.append(_tex_row(_tex(line.name), map(_tex_entry, line.entries)))
            if line.baseline:
                parts.append(_tex_row(rf"\quad vs.\ {_tex(line.baseline)}", map(_tex_below, line.entries)))
    return "\n".join([*parts, r"\bottomrule", r"\end{tabular}", ""])


def csv(table: Comparison | Grid) -> str:
    """Return the numbers, unscaled and in full, as CSV.

    Of a comparison a line per row and metric: group, row, metric, n, mean, std, baseline, difference, low, high; of a
    grid its matrix. What is unknown is empty.
    """
    file = io.StringIO()
    writer = csv_format.writer(file, lineterminator="\n")
    if isinstance(table, Grid):
        writer.writerow([table.corner, *table.columns])
        writer.writerows([name, *map(_full, numbers)] for name, numbers in table.rows.items())
    else:
        writer.writerow(["group", "row", "metric", "n", "mean", "std", "baseline", "difference", "low", "high"])
        writer.writerows(_records(table))
    return file.getvalue()


def _records(table: Comparison) -> Iterator[list[object]]:
    for heading, rows in table.groups.items():
        for row in rows:
            for key, cell in table.cells[row].items():
                paired = map(_full, (cell.difference, cell.low, cell.high))
                baseline = table.baselines.get(row, "")
                yield [heading, row, key, cell.n, _full(cell.mean), _full(cell.std), baseline, *paired]


def _full(value: float | None) -> str:
    return "" if value is None or value != value else repr(float(value))


def _rich(entry: Entry) -> Text:
    text = Text().append(entry.number, style="bold" if entry.best else "")
    if entry.spread:
        text.append(f" ±{entry.spread}")
    if entry.below:
        text.append(f"\n{entry.below}{'*' if entry.clear else ''}", style="dim")
    return text


def _md(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>|#~&$" else c for c in " ".join(text.split()))


def _md_entry(entry: Entry) -> str:
    text = f"**{entry.number}**" if entry.best else entry.number
    text += f" ± {entry.spread}" if entry.spread else ""
    return text + (f"<br>{entry.below}{_md('*') if entry.clear else ''}" if entry.below else "")


_ARROWS = {"": "", "↑": r" $\uparrow$", "↓": r" $\downarrow$"}
_UNITS = {"×10³": r"$\times 10^3$", "×10": r"$\times 10$"}
# A bracket or star at the start of a row would be read as an option of the \\ before it.
_TEX = str.maketrans(
    {c: rf"\{c}" for c in "{}$&#_%"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "[": "{[}", "*": "{*}", "–": "--", "×": r"$\times$"}
)


def _tex(text: str) -> str:
    return " ".join(text.split()).translate(_TEX)


def _tex_row(name: str, cells: Iterable[str]) -> str:
    return rf"{' & '.join([name, *cells])} \\"


def _tex_entry(entry: Entry) -> str:
    if entry.number == "–":
        return "--"
    number = rf"\mathbf{{{entry.number}}}" if entry.best else entry.number
    return f"${number} \\pm {entry.spread}$" if entry.spread else f"${number}$"


def _tex_below(entry: Entry) -> str:
    return rf"\scriptsize ${entry.below}{'^{*}' if entry.clear else ''}$" if entry.below else ""
