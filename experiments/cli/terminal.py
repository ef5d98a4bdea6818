"""Input and output of the command: shared options, folders that can be written, messages and tables."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from probattn.experiments.displayable import displayable

console = Console(quiet=os.environ.get("RANK", "0") != "0")  # under torchrun only rank 0 writes
# Number of cores that this process may use.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
# Bounds of options that are numbers of things, and of seeds: those of the settings, which take seconds to import.
COUNT, SEED = {"min": 1, "max": 2**31 - 1}, {"min": 0, "max": 2**63 - 1}
# Length of the longest word that a table does not fold.
MAX_WORD = 24
# Maximum number of runs of a preset.
MAX_RUNS = 10_000


def existing(path: Path | None) -> Path | None:
    """Check that the folder or file given with ``--data`` exists, so that no download creates a mistyped one."""
    if path is not None and not (path.expanduser().is_dir() or path.expanduser().is_file()):
        raise FileNotFoundError(f"{path} does not exist; correct --data, or create it")
    return path


def check_folder(folder: Path | None) -> Path | None:
    """Check that ``--out``, or the nearest folder above it that exists, can be written, so that no work is lost.

    Raises:
        ValueError: it cannot.
    """
    place = folder
    try:
        str(folder).encode()  # half a surrogate pair stands for a byte that is not UTF-8
        while place is not None and not os.path.lexists(place):
            place = place.parent
        tempfile.TemporaryFile(dir=place).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", "its name is not valid UTF-8")
        raise ValueError(f"cannot write to {folder} ({reason}); choose another with --out") from error
    return folder


def check_file(path: Path | None) -> None:
    """Create the folder of the file ``--out``; fail now if the file cannot be written after minutes of work.

    Raises:
        ValueError: it cannot.
    """
    if path is not None:
        check_folder(path.parent).mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise ValueError(f"cannot write to {path}, which is no regular file; choose another with --out")


DATA = "Existing folder of the data sets, or your own data; default those of the run."
Data = Annotated[Path | None, typer.Option(callback=existing, help=DATA)]
SettingChanges = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")]
ENCODER = "Pretrained Hugging Face encoder of the finetune presets: network.encoder."
Encoder = Annotated[str | None, typer.Option(metavar="FOLDER", help=ENCODER)]
SETS = "Conformal sets with the level on average, or in every class, which suits rare classes."
Sets = Annotated[Literal["plain", "by-class"], typer.Option(help=SETS)]


def split_words(values: list[str] | None) -> list[str]:
    """Split the values of an option that is given several times, or once with commas."""
    return [word.strip() for value in values or () for word in value.split(",")]


def encoder_change(encoder: str | None) -> list[str]:
    """Return ``--encoder FOLDER`` as a change of settings."""
    return [] if encoder is None else [f"network.encoder={encoder}"]


def say(text: str, *, style: str = "") -> None:
    """Print lines without markup."""
    console.print(_lines(text), style=style, markup=False, highlight=False, soft_wrap=True)


def show_table(table: Table) -> None:
    """Print a table, folded between words where the terminal is narrow, and wider than it where words do not fit."""
    for column in table.columns:
        words = " ".join(str(text) for text in (column.header, *column.cells)).split()
        longest = max(map(cell_len, words), default=1)
        column.min_width, column.overflow = longest if column.no_wrap else min(MAX_WORD, longest), "fold"
    wide = console.options.update(max_width=10_000)
    width = max(console.width, console.measure(table, options=wide).minimum)
    Console(width=width, quiet=console.quiet).print(table, crop=False)


def show_metrics(table: Any) -> None:
    """Print a table of :mod:`~probattn.experiments.reporting.tables`."""
    from probattn.experiments.reporting.table_formats import terminal

    show_table(terminal(table))


def fail(message: str, *, status: int = 1) -> NoReturn:
    """Print an error and exit."""
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), _lines(message)), soft_wrap=True)
    raise SystemExit(status)


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """Exit with status 130 and advice on how to continue when the user presses Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped; {advice}", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(130) from None


def _lines(text: str) -> str:
    """Make the lines of a text displayable."""
    return "\n".join(map(displayable, text.split("\n")))
