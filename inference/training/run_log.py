"""Log of a run: JSON Lines, and any loggers beside it."""

import contextlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from probattn.inference.io.files import write_bytes
from probattn.inference.training.callbacks import Logger


class RunLog:
    """Log that appends records to ``log.jsonl`` in a run's folder, or keeps them in memory, and passes them to loggers.

    A resumed log is truncated at the checkpoint's step, so that it contains each step once.

    Args:
        folder: folder of the run, or None to keep the records in memory.
        step: last step to keep; later records are dropped.
        loggers: get each record as well.
    """

    def __init__(self, folder: Path | None, *, step: int, loggers: Sequence[Logger]) -> None:
        self._records: list[dict[str, Any]] = []
        self._path, self._loggers = None if folder is None else folder / "log.jsonl", loggers
        if self._path is not None and self._path.exists():
            records = [record for record in read_log(self._path) if record["step"] <= step]
            write_bytes(self._path, "".join(map(_to_line, records)).encode(), tag="part")

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records so far, read from the file if there is one: in memory they would grow with the run."""
        return self._records if self._path is None else read_log(self._path)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append one record.

        Args:
            kind: ``"step"`` or ``"epoch"``.
            step: number of training steps so far.
            values: numbers.
        """
        record = {"kind": kind, "step": step, **values}
        if self._path is None:
            self._records.append(record)
        else:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_to_line(record))
        for logger in self._loggers:
            logger.log_metrics({name if "/" in name else f"{kind}/{name}": values[name] for name in values}, step)

    def write_options(self, options: dict[str, Any]) -> None:
        """Pass the options of the run to the loggers that record them."""
        for logger in self._loggers:
            with contextlib.suppress(NotImplementedError):  # as CSVLogger
                logger.log_hyperparams(options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = "success" if kind is None else "failed" if issubclass(kind, Exception) else "aborted"
        with contextlib.ExitStack() as stack:
            for logger in self._loggers:
                stack.callback(logger.finalize, status)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the records of a log file, null as NaN; a last line that a crash has cut short is dropped."""
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    return [{key: math.nan if value is None else value for key, value in json.loads(line).items()} for line in lines]


def _to_line(record: dict[str, Any]) -> str:
    """Return one line of strict JSON, with null for NaN and Inf."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in record.items()
    }
    return json.dumps(finite) + "\n"
