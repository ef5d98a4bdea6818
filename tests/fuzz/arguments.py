"""Fuzzing of command lines: each is accepted, or refused by one short message; nothing is trained or measured."""

import contextlib
import functools
import io
import os
import random as random_module
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch

import typer
from torch import nn

from probattn.experiments.cli import main
from probattn.experiments.config.presets import PRESETS

KEP = "digits/kep-svgp"
MAX_LINES = 4
"""Maximum number of lines of a message."""
ACCEPTED = "accepted"
"""Status of a command that passed all checks and was about to work."""
TEXTS = (
    *("", " ", "-", "--", ",", ",,", "=", ".", "..", "/", "~", "*", "nan", "inf", "-inf", "none", "true", "[]", "{}"),
    *("-1", "0", "1", "2", "1.5", "1e3", "1e400", "0x10", "1_0", " 1", "²", "١", str(2**31), str(2**63), "9" * 30),
    *("1" * 5000, "x" * 5000, "é", "\x1b[31mred\x1b[0m", "\x07", "a\nb", "\r", "\u202edcba", "\udcff", "=1+1"),
)
PLACES = ("file", "file/x", "fifo", "fifo/x", "loop", "loop/x", "empty", "new", "new/x", "run", "pipes", "\udcff", "")


class Outcome(NamedTuple):
    """Exit status of a command, or :data:`ACCEPTED`, and what it wrote."""

    status: int | str
    out: str
    err: str


class _AcceptedError(BaseException):
    """Raised in place of the work of a command."""


def fuzz_arguments(random: random_module.Random, folder: Path) -> str:
    """Try one random command line, and return the command and its status.

    Args:
        random: generator.
        folder: folder that the command may use; :func:`furnish` is called if it is empty.

    Raises:
        AssertionError: a traceback, a long message, or control characters in the output.
    """
    if not any(folder.iterdir()):
        furnish(folder)
    arguments = command_line(random, folder)
    with without_work(), contextlib.chdir(folder):
        outcome = run(arguments)
    check(arguments, outcome)
    return f"{arguments[0]!a}, {outcome.status}"


def furnish(folder: Path) -> None:
    """Fill a folder with what no command expects: pipes, links in a circle, files in place of folders."""
    (folder / "file").write_text("text", encoding="utf-8")
    (folder / "empty").mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "pipes").mkdir()
    os.mkfifo(folder / "pipes" / "a.png")


def command_line(random: random_module.Random, folder: Path) -> list[str]:
    """Return a command with random options, most with a hostile value."""
    commands = typer.main.get_command(main.app).commands
    name = random.choice(sorted(set(commands) - {"check-gp", "check-gpu"}))  # they have nothing to refuse
    options = [parameter for parameter in commands[name].params if parameter.param_type_name == "option"]
    words = [name]
    for parameter in commands[name].params:
        if parameter.param_type_name == "argument":
            words.append(_value(parameter.name, random, folder))
    for option in random.choices(options, k=random.randint(0, 3)):
        words.append(option.opts[-1])
        if not option.is_flag:
            words.append(_value(option.opts[-1], random, folder))
    if random.random() < 0.05:
        words.insert(random.randrange(len(words) + 1), random.choice(TEXTS))
    return words


def _value(name: str, random: random_module.Random, folder: Path) -> str:
    """Return a value of an argument or option, hostile more often than not."""
    if name in ("preset", "presets", "name") and random.random() < 0.6:
        return random.choice((KEP, random.choice(list(PRESETS))))
    if name == "--set" and random.random() < 0.9:
        return f"{random.choice(_keys())}={random.choice(TEXTS)}"
    if name in ("run", "runs", "--config", "--data", "--out", "--ood") and random.random() < 0.8:
        suffix = random.choice(("", "", ".pt2", ".safetensors", ".csv", "/./", "x" * 300))
        waits = name in ("--config", "--data")  # for whoever writes into a pipe
        return str(folder / random.choice([place for place in PLACES if place != "fifo" or not waits])) + suffix
    # the root of the file system would be searched for images
    return random.choice([text for text in TEXTS if name != "--ood" or text not in ("/", ".", "..", "~")])


@functools.cache
def _keys() -> list[str]:
    presets = (KEP, "digits/sgpa", "kep-svgp/cola", "tabular/csv")
    return sorted({key for name in presets for key in PRESETS[name].flat()})


def run(arguments: Sequence[str]) -> Outcome:
    """Run the command in this process, by the function that the program calls."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    argv = patch.object(sys, "argv", ["probattn", *arguments])
    with argv, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main.main()
        except SystemExit as stopped:
            status: int | str = stopped.code
        except _AcceptedError:
            status = ACCEPTED
    return Outcome(status, *(_text(stream) for stream in (out, err)))


def check(arguments: Sequence[str], outcome: Outcome) -> None:
    """Check that a command was accepted or failed with one short message.

    Raises:
        AssertionError: it was not.
    """
    status, out, err = outcome
    report = f"{arguments!a}: {status}\n{err}"
    visible = (character.isprintable() or character == "\n" for character in out + err)
    assert all(visible), f"control characters: {report!a}"
    assert "Traceback" not in err, report
    if status in (1, 2) and err:  # without a message: the help
        assert err.startswith("error: ") or "\nerror: " in err, report
        assert len(err.splitlines()) <= MAX_LINES, report
    else:
        assert status in (0, 2, ACCEPTED), report


@contextlib.contextmanager
def without_work() -> Iterator[None]:
    """Stop commands with the status :data:`ACCEPTED` where a network would run, or a process would start."""

    def accept(*arguments: Any, **options: Any) -> NoReturn:
        raise _AcceptedError

    with patch.object(nn.Module, "__call__", accept), patch.object(BaseProcess, "start", accept):
        yield


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()
