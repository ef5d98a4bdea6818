"""What the command says: lines, tables that lose no cell, errors in one message."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

console = Console(quiet=os.environ.get("RANK", "0") != "0")  # of torchrun's processes the first speaks


def say(text: str, *, style: str = "") -> None:
    """Prints a line as it is."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def show_table(table: Table) -> None:
    """Prints a table with no cell cut off: folded to a terminal as far as it goes, in its natural width to a file."""
    extent = console.measure(table, options=console.options.update(max_width=1_000))
    width = max(console.width, extent.minimum) if console.is_terminal else extent.maximum
    Console(width=width, quiet=console.quiet).print(table)


def fail(message: str) -> NoReturn:
    """Prints an error and ends the process."""
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    raise SystemExit(1)


def check_writable(path: Path | None) -> None:
    """Makes the folder of a file that is written after minutes of work, or fails now."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise OSError(f"cannot write {path}; choose another file with --json")


@contextmanager
def stoppable(advice: str) -> Iterator[None]:
    """Lets a user stop what is inside with Ctrl-C, and tells them how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped; {advice}", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(130) from None
