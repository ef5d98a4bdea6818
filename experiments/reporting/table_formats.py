"""Renderers of tables: for the terminal, and as Markdown and LaTeX."""

import re

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from probattn.experiments.displayable import displayable
from probattn.experiments.reporting.tables import Bold, Table

# LaTeX reads a bracket or star at the start of a row as an option of the \\ before it.
TEX = str.maketrans(
    {character: rf"\{character}" for character in "{}$&#_%"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "[": "{[}", "]": "{]}", "*": "{*}", "–": "--", "³": "$^3$"}
    | {"×": r"$\times$", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}
)


def terminal(table: Table) -> RichTable:
    """Return a table for the terminal, whose names and numbers fold."""
    note = Text(displayable(table.note)) if table.note else None
    rich = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, caption=note, caption_justify="left")
    for place, name in enumerate(table.frame.columns):
        heading = displayable(name).replace(" ", "\n", 1) if place else displayable(name)
        rich.add_column(Text(heading), justify="right" if place else "left", overflow="fold")
    for row in table.frame.itertuples(index=False, name=None):
        rich.add_row(*(Text(displayable(text), "bold" if isinstance(text, Bold) else "") for text in row))
    return rich


def markdown(table: Table) -> str:
    """Return a table in GitHub's Markdown, with its note below."""
    columns = list(map(_markdown, table.frame.columns))
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    lines += [[_markdown(text) for text in row] for row in table.frame.itertuples(index=False, name=None)]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{text}\n{_markdown(table.note)}\n" if table.note else text


def latex(table: Table) -> str:
    r"""Return a LaTeX ``tabular``, which needs ``\usepackage{booktabs}``, with its note in a comment above."""
    frame = table.frame.map(_latex)
    frame.columns = list(map(_latex, frame.columns))
    form = "l" + "r" * (len(frame.columns) - 1)
    note = f"% {' '.join(displayable(table.note).split())}\n" if table.note else ""
    return note + frame.to_latex(index=False, escape=False, column_format=form)


def _markdown(text: str) -> str:
    plain = displayable(" ".join(text.split()))
    escaped = "".join(f"\\{character}" if character in "\\`*_{}[]<>|#~&$" else character for character in plain)
    return f"**{escaped}**" if isinstance(text, Bold) else escaped


def _latex(text: str) -> str:
    escaped = re.sub(r"(?<!\S)(\{\[\})?-(?=\d)", r"\1$-$", displayable(" ".join(text.split())).translate(TEX))
    return rf"\textbf{{{escaped}}}" if isinstance(text, Bold) else escaped
