"""Input and output of the command: shared options, messages, tables, errors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

console = Console(quiet=os.environ.get("RANK", "0") != "0")  # under torchrun only rank 0 writes


def _existing(folder: Path | None) -> Path | None:
    """Check that the folder given with ``--data`` exists, so that no download creates a mistyped one."""
    if folder is not None and not folder.expanduser().is_dir():
        raise NotADirectoryError(f"the folder of the data sets {folder} does not exist; correct --data, or create it")
    return folder


Data = Annotated[
    Path | None,
    typer.Option(callback=_existing, help="Existing folder of the data sets; default $PROBATTN_DATA, else ./data."),
]
SettingChanges = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")]


def say(text: str, *, style: str = "") -> None:
    """Print a line without markup."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def show_table(table: Table) -> None:
    """Print a table with no cell cut off: folded to a terminal as far as possible, in its natural width to a file."""
    extent = console.measure(table, options=console.options.update(max_width=1_000))
    width = max(console.width, extent.minimum) if console.is_terminal else extent.maximum
    Console(width=width, quiet=console.quiet).print(table)


def fail(message: str) -> NoReturn:
    """Print an error and exit."""
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    raise SystemExit(1)


def check_writable(path: Path | None, *, option: str) -> None:
    """Create the folder of a file that is written after minutes of work; fail now if the file cannot be written.

    Raises:
        OSError: the file cannot be written; ``option`` is named.
    """
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise OSError(f"cannot write {path}; choose another file with {option}")


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Exit with status 130 and advice on how to continue when the user presses Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped; {advice}", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(130) from None
