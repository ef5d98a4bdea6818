"""The ``probattn`` command."""

import errno
import importlib.metadata
import os
import re
import shlex
import signal
import sys
import warnings
from typing import Annotated, Any, NoReturn, cast

import filelock
import typer

from probattn.experiments.cli import (
    checks,
    deployment,
    evaluate_command,
    reproduce,
    review_command,
    study_command,
    train_command,
)
from probattn.experiments.cli.terminal import fail, lines

# Messages of PyTorch's errors where memory does not suffice.
OUT_OF_MEMORY = re.compile("out of memory|allocate memory|Storage size calculation overflowed")
COMMANDS = (
    train_command.presets,
    train_command.train,
    evaluate_command.evaluate,
    review_command.review,
    deployment.predict,
    deployment.export,
    study_command.study,
    study_command.compare,
    study_command.demo,
    reproduce.reproduce,
    checks.bench,
    checks.check_gp,
    checks.check_gpu,
)
HELP = (
    "Uncertainty-aware attention: train, evaluate and compare transformers whose attention is a "
    "Pyro program."
)
app = typer.Typer(
    help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
for command in COMMANDS:
    app.command()(command)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"probattn {importlib.metadata.version('probattn')}")
        raise typer.Exit


def main() -> NoReturn:
    """Run the command; errors that a user can mend are one message without a traceback."""
    warnings.formatwarning = lambda message, *_: f"warning: {lines(str(message))}\n"
    os.environ["MPLBACKEND"] = (
        "agg"  # figures are files; that of a notebook may not be installed here
    )
    for stream in cast(Any, (sys.stdout, sys.stderr)):  # typed as TextIO, which lacks the method
        if stream is not None:  # it is closed
            stream.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # of the imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = app(prog_name="probattn", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        if _was_interrupted(error):
            status = 130
        else:
            message = _message(error)
            if message is None:
                raise
            fail(message, status=getattr(error, "exit_code", 1))
    if status == 130:  # Ctrl-C
        print(
            "stopped; the same command continues where it was (train: with --resume)",
            file=sys.stderr,
        )
    raise SystemExit(status or 0)


def _message(error: BaseException) -> str | None:
    """Return the message of an error of usage, of memory, of the system or of this library; None
    for a bug."""
    if hasattr(error, "format_message"):  # Typer's errors, whose classes are not public
        text = " ".join(error.format_message().split()).rstrip(".")
        context = getattr(error, "ctx", None)
        if not text:  # the help was displayed instead
            raise SystemExit(getattr(error, "exit_code", 2))
        return f"{text}; see `{context.command_path if context else 'probattn'} --help`"
    text = str(error)
    if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(text):
        detail = text.partition("\n")[0]
        return (
            f"out of memory{detail and f': {detail}'}; reduce the samples, the batch size or the "
            "network"
        )
    if isinstance(error, filelock.Timeout):
        advice = "wait until that has ended, or choose another folder"
        return f"The file lock '{error.lock_file}' is held by another process: {advice}"
    if isinstance(error, OSError) and error.strerror:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = (
            "free some space"
            if is_full
            else "correct the name, or restore what was moved or deleted"
        )
        return f"{error.strerror}: {error.filename or 'standard output'}; {advice}"
    if flag := getattr(error, "flag", None):
        command, *rest = sys.argv[1:]
        return f"{text}: {shlex.join(['probattn', command, flag, *rest])}"
    is_ours = type(error).__module__.startswith("probattn.")
    return text if is_ours or isinstance(error, OSError | ValueError) else None


def _was_interrupted(error: BaseException | None) -> bool:
    """Return True if an error follows from Ctrl-C, which some libraries turn into another while
    they are imported."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
