"""Input and output of the command: shared options, messages, tables, errors."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from probattn.experiments.displayable import ENCODABLE, displayable

if TYPE_CHECKING:
    from probattn.experiments.reporting.tables import Table as MetricsTable

console = Console(quiet=os.environ.get("RANK", "0") != "0")  # under torchrun only rank 0 writes


def existing(folder: Path | None) -> Path | None:
    """Check that the folder or file given with ``--data`` exists, so that no download creates a mistyped one."""
    if folder is not None and not (folder.expanduser().is_dir() or folder.expanduser().is_file()):
        raise NotADirectoryError(f"the folder of the data sets {folder} does not exist; correct --data, or create it")
    return folder


def check_folder(folder: Path | None) -> Path | None:
    """Check that a folder given with ``--out`` can be created and written, so that no work is lost at its end.

    Raises:
        OSError, ValueError: it cannot be.
    """
    if folder is not None:
        _check_name(folder, option="--out")
        if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
            raise NotADirectoryError(f"cannot write to {folder}, which is not a folder; choose another with --out")
        _check_parent(folder, option="--out")
    return folder


def check_file(path: Path | None, *, option: str) -> None:
    """Create the folder of a file that is written after minutes of work; fail now if the file cannot be written.

    Raises:
        OSError, ValueError: the file cannot be written; ``option`` is named.
    """
    if path is not None:
        _check_name(path, option=option)
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise OSError(f"cannot write {path}, which is {kind}; choose another file with {option}")
        _check_parent(path, option=option)
        path.parent.mkdir(parents=True, exist_ok=True)


def _check_name(path: Path, *, option: str) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        encoding = sys.getfilesystemencoding()
        raise ValueError(f"the name {path} is not valid {encoding}; choose another with {option}") from error
    try:
        path.exists()  # raises for names that are too long and links that lead in a circle
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}; choose another with {option}") from error


def _check_parent(path: Path, *, option: str) -> None:
    """Check that a path, or the nearest folder above it that exists, can be written."""
    place = path if path.is_dir() else path.parent
    while not place.exists() and not place.is_symlink():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        reason = f"{place}: {error.strerror}"
        raise OSError(f"cannot write {path} ({reason}); choose another with {option}") from error


Data = Annotated[
    Path | None,
    typer.Option(
        callback=existing, help="Existing folder of the data sets, or your own data; default those of the run."
    ),
]
SettingChanges = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")]
Encoder = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Pretrained Hugging Face encoder of the finetune presets: network.encoder."),
]
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""Number of cores that this process may use."""
COUNT = {"min": 1, "max": 2**31 - 1}
SEED = {"min": 0, "max": 2**63 - 1}
"""Bounds of options that are numbers of things, and of seeds: those of the settings, which take seconds to import."""
MAX_RUNS = 10_000
"""Maximum number of runs of a preset."""


def split_words(values: list[str] | None) -> list[str]:
    """Split the values of an option that is given several times, or once with commas."""
    return [word.strip() for value in values or () for word in value.split(",")]


def encoder_change(encoder: str | None) -> list[str]:
    """Return ``--encoder FOLDER`` as a change of settings."""
    return [] if encoder is None else [f"network.encoder={encoder}"]


def make_encodable() -> None:
    """Let standard output and error display substitutes of characters that they cannot encode, such as ± in ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ENCODABLE)


def say(text: str, *, style: str = "") -> None:
    """Print lines without markup."""
    console.print(_lines(text), style=style, markup=False, highlight=False, soft_wrap=True)


def show_table(table: Table) -> None:
    """Print a table with no cell cut off, folded to the terminal's width, 80 columns in a file, as far as possible."""
    measure = functools.partial(console.measure, table, options=console.options.update(max_width=1_000))
    padding = table.padding
    if measure().maximum > console.width:
        table.padding = 0
    if measure().minimum > console.width:
        table.padding = padding
    Console(width=max(console.width, measure().minimum), quiet=console.quiet).print(table)


def show_metrics(table: MetricsTable) -> None:
    """Print a table of numbers."""
    from probattn.experiments.reporting.table_formats import terminal

    show_table(terminal(table))


def fail(message: str, *, status: int = 1) -> NoReturn:
    """Print an error and exit."""
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), _lines(message)), soft_wrap=True)
    raise SystemExit(status)


def _lines(text: str) -> str:
    """Make the lines of a text displayable."""
    return "\n".join(map(displayable, text.split("\n")))


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Exit with status 130 and advice on how to continue when the user presses Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped; {advice}", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(130) from None
