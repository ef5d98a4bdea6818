"""Messages of errors that a user of the command can fix, in place of a traceback."""

import re
from typing import NoReturn

import torch

from probattn.experiments.cli.terminal import fail

OUT_OF_MEMORY = re.compile("can't allocate memory|Storage size calculation overflowed")
"""Messages of PyTorch's errors where memory on the CPU does not suffice; they have no class of their own."""


def fail_with_message(error: Exception) -> None:
    """Print the message of an error that a user can fix, and exit; return for any other error."""
    if hasattr(error, "format_message"):  # Typer's errors, whose classes are not public
        _fail_with_usage(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or OUT_OF_MEMORY.search(str(error)):
        fail(f"out of memory: {str(error).splitlines()[0]}; reduce the samples, the batch size or the network")
    if isinstance(error, _user_errors()):
        fail(f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else str(error))


def _fail_with_usage(error: Exception) -> NoReturn:
    """Print an error about options or arguments."""
    message = " ".join(error.format_message().split())
    if not message:  # the help was displayed instead
        raise SystemExit(error.exit_code)
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "probattn"
    fail(f"{message.rstrip('.')}; see `{command} --help`", status=error.exit_code)


def _user_errors() -> tuple[type[Exception], ...]:
    from probattn.experiments.data.errors import DatasetError
    from probattn.experiments.data.sealed_files import DamagedFileError
    from probattn.functional.errors import NumericalError
    from probattn.inference import CheckpointError
    from probattn.inference.imports import MissingExtraError

    return DatasetError, CheckpointError, DamagedFileError, MissingExtraError, NumericalError, OSError, ValueError
