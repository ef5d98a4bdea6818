"""Log of a run: JSON Lines, and any loggers beside it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probattn.inference.io.files import naming, write_bytes

if TYPE_CHECKING:
    from lightning_fabric.loggers import Logger


class RunLog:
    """Log that appends records to a file, and passes them to loggers.

    A resumed log is truncated at the checkpoint's step, so that it contains each step once.

    Args:
        folder: the folder of a run, whose file is ``log.jsonl``, or None to keep the records in
            memory only.
        step: last step to keep; later records are dropped.
        loggers: get each record as well.

    Attributes:
        records: all records so far.
    """

    def __init__(self, folder: Path | None, *, step: int, loggers: Sequence["Logger"]) -> None:
        self.records: list[dict[str, Any]] = []
        self._path = None if folder is None else folder / "log.jsonl"
        self._loggers = loggers
        if self._path is not None and self._path.exists():
            self.records = [record for record in read_log(self._path) if record["step"] <= step]
            lines = map(_to_line, self.records)
            write_bytes(self._path, "".join(lines).encode(), tag="part")

    def finalize(self, error: type[BaseException] | None, *_: Any) -> None:
        """Finalise the loggers, as the exit of a context."""
        for logger in self._loggers:
            logger.finalize("failed" if error else "success")

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append one record.

        Args:
            kind: ``"step"`` or ``"epoch"``.
            step: number of training steps so far.
            values: numbers.
        """
        record = {"kind": kind, "step": step, **values}
        self.records.append(record)
        if self._path is not None:
            with naming(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(_to_line(record))
        titles = {name if "/" in name else f"{kind}/{name}": values[name] for name in values}
        for logger in self._loggers:
            logger.log_metrics(titles, step)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the records of steps or epochs."""
        return [record for record in self.records if record["kind"] == kind]


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the records of a log file; a last line that a crash has cut short is dropped."""
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines]


def _to_line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"
