"""Input and output of the command: options that several commands have, messages and tables."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from probattn.experiments.displayable import displayable

console = Console(quiet=os.environ.get("RANK", "0") != "0")  # under torchrun only rank 0 writes
# Number of cores that this process may use.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
# Bounds of options that are numbers of things, and of seeds: those of the settings, which take
# seconds to import.
COUNT = {"min": 1, "max": 2**31 - 1}
SEED = {"min": 0, "max": 2**63 - 1}
# Length of the longest word that a table does not fold.
MAX_WORD = 24
# Maximum number of runs of a preset.
MAX_RUNS = 10_000
DATA = "Existing folder of the data sets, or your own data; default those of the run."
Data = Annotated[Path | None, typer.Option(exists=True, help=DATA)]
SettingChanges = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")
]
OutFolder = Annotated[Path, typer.Option(file_okay=False, help="Folder of the results.")]
Workers = Annotated[int, typer.Option(**COUNT, help="Runs at a time; default one per core.")]
TRUST = "Run code that the folder names, such as your own layer; only if you trust who made it."
TrustCode = Annotated[bool, typer.Option("--trust-code", help=TRUST)]
REFINE = "Share of inputs, the least confident, that gets all posterior samples; others get one."
Refine = Annotated[float | None, typer.Option(min=0.001, max=0.999, help=REFINE)]
SETS = (
    "Conformal sets have their coverage on average, or in every class (for rare classes); aps and "
    "raps, on average, are larger for difficult inputs."
)
Sets = Annotated[Literal["plain", "by-class", "aps", "raps"], typer.Option(help=SETS)]


def split_words(values: list[str] | None) -> list[str]:
    """Split the values of an option that is given several times, or once with commas."""
    joined = ",".join(values or ())
    return [word.strip() for word in joined.split(",")] if values else []


def say(text: str, *, style: str = "") -> None:
    """Print lines without markup."""
    console.print(lines(text), style=style, markup=False, highlight=False, soft_wrap=True)


def show_table(table: Table) -> None:
    """Print a table, folded between words where the terminal is narrow, and wider than it where
    words do not fit."""
    width = max(console.width, _minimum(table))
    Console(width=width, quiet=console.quiet).print(table, crop=False)


def _fits(table: Table) -> bool:
    """Return True if no line of a table is wider than the terminal."""
    _minimum(table)  # sets how it is folded
    lines_of_table = Segment.split_lines(console.render(table))
    return max(map(Segment.get_line_length, lines_of_table)) <= console.width


def _minimum(table: Table) -> int:
    """Return the least width of a table that is folded between words."""
    for column in table.columns:
        words = " ".join(str(text) for text in (column.header, *column.cells)).split()
        longest = max(map(cell_len, words), default=1)
        column.min_width = longest if column.no_wrap else min(MAX_WORD, longest)
        column.overflow = "fold"
    wide = console.options.update(max_width=10_000)
    return console.measure(table, options=wide).minimum


def show_metrics(table: Any) -> None:
    """Print a table of :mod:`~probattn.experiments.reporting.tables`, of several parts where all
    its columns do not fit the terminal."""
    from probattn.experiments.reporting.tables import divided, terminal

    last = len(table.frame.columns) - 1
    for number in range(1, max(last, 1) + 1):
        parts = [terminal(part) for part in divided(table, number)]
        if all(map(_fits, parts)):
            break
    for part in parts:
        show_table(part)


def fail(message: str, *, status: int = 1) -> NoReturn:
    """Print an error and exit."""
    Console(stderr=True).print(
        Text.assemble(("error: ", "bold red"), lines(message)), soft_wrap=True
    )
    raise SystemExit(status)


def lines(text: str) -> str:
    """Make the lines of a text displayable."""
    return "\n".join(map(displayable, text.split("\n")))
