"""Log of a run: JSON Lines, and any loggers beside it."""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from probattn.inference.io.atomic_write import name_path_in_errors, write_bytes
from probattn.inference.io.digest import digest
from probattn.inference.io.sealed_files import DamagedFileError
from probattn.inference.training.loggers import Logger, default_loggers

DIGITS = 16
"""Length of the digest of a line, in hexadecimal digits."""


class RunLog:
    """Log that appends records to ``log.jsonl`` in a run's folder, or keeps them in memory, and passes them to loggers.

    A resumed log is truncated at the checkpoint's step, so that it contains each step once.

    Args:
        folder: folder of the run, or None to keep the records in memory.
        step: last step to keep; later records are dropped.
        loggers: get each record as well; None for :func:`~.loggers.default_loggers`.
    """

    def __init__(self, folder: Path | None, *, step: int = 0, loggers: Sequence[Logger] | None = None) -> None:
        self._records: list[dict[str, Any]] = []
        self._folder, self._path = folder, None if folder is None else folder / "log.jsonl"
        self._file = None if folder is None else _truncate(self._path, step).open("a", encoding="utf-8")
        self._writes_to_folder = loggers is None and folder is not None
        self._loggers = default_loggers(folder, step=step) if loggers is None else loggers

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records so far, read from the file if there is one: in memory they would grow with the run."""
        return self._records if self._path is None else read_log(self._path)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append one record and flush it.

        Args:
            kind: ``"step"`` or ``"epoch"``.
            step: number of training steps so far.
            values: numbers.

        Raises:
            OSError: it cannot be written; names the folder.
        """
        record = {"kind": kind, "step": step, **values}
        if self._file is None:
            self._records.append(record)
        if self._file is not None:
            with name_path_in_errors(self._folder):
                self._file.write(_to_line(record))
                self._file.flush()
        with self._name_folder():
            for logger in self._loggers:
                logger.log_metrics({name if "/" in name else f"{kind}/{name}": values[name] for name in values}, step)

    def write_options(self, options: dict[str, Any]) -> None:
        """Pass the options of the run to the loggers that record them."""
        with self._name_folder():
            for logger in self._loggers:
                with contextlib.suppress(NotImplementedError):  # as CSVLogger
                    logger.log_hyperparams(options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = "success" if kind is None else "failed" if issubclass(kind, Exception) else "aborted"
        with self._name_folder(), contextlib.ExitStack() as stack:
            for logger in self._loggers:
                stack.callback(logger.finalize, status)
            if self._file is not None:
                stack.callback(self._file.close)

    @contextlib.contextmanager
    def _name_folder(self) -> Iterator[None]:
        """Name the folder in errors of loggers that write there."""
        with name_path_in_errors(self._folder) if self._writes_to_folder else contextlib.nullcontext():
            yield


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the records of a log file, null as NaN; a last line that a crash left half-written is dropped.

    Raises:
        DamagedFileError: a line has changed since it was written, or is there twice; it is named.
    """
    *lines, rest = path.read_bytes().split(b"\n")
    records, last = [], {}
    for number, line in enumerate([*lines, rest] if _is_complete(rest) else lines, start=1):
        record = _from_line(line)
        is_repeated = record is not None and record["step"] <= last.get(record["kind"], -1)
        if record is None or is_repeated:
            problem = "repeats an earlier one" if is_repeated else "does not match its digest"
            raise DamagedFileError(
                f"{path}, line {number} is damaged or was edited: it {problem}; restore the log from a "
                "copy, or remove it, with which the curves of the earlier epochs are lost"
            )
        records.append(record)
        last[record["kind"]] = record["step"]
    return records


def _to_line(record: dict[str, Any]) -> str:
    """Return one line of strict JSON, with null for NaN and Inf and the record's digest as its last entry."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in record.items()
    }
    return json.dumps(finite | {"digest": digest(json.dumps(finite))[:DIGITS]}) + "\n"


def _from_line(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line without its end; None if :func:`_to_line` would not write the same line for it."""
    try:
        found = json.loads(line)
        del found["digest"]
        record = {key: math.nan if value is None else value for key, value in found.items()}
        return record if _to_line(record).encode() == line + b"\n" else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _is_complete(rest: bytes) -> bool:
    """Return True if what follows the last line end contains a whole record, of which a crash leaves only the end."""
    return re.search(rb'"digest": "[0-9a-f]{%d}"}' % DIGITS, rest) is not None


def _truncate(path: Path, step: int) -> Path:
    """Drop the records after a step, if there is a log, and return its path."""
    if path.exists():
        records = [record for record in read_log(path) if record["step"] <= step]
        write_bytes(path, "".join(map(_to_line, records)).encode(), tag="part")
    return path
