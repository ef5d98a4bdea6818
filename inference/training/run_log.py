"""The log of a run: JSON Lines for programs, TensorBoard for people where it is installed."""

import contextlib
import functools
import json
import math
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from probattn.inference.io.atomic_write import atomic_write, name_path_in_errors


class RunLog:
    """Appends records to ``log.jsonl`` and TensorBoard in a run's folder; without a folder it only keeps them.

    A resumed log is cut back to the checkpoint's step, so that each step stands in it once.

    Args:
        folder: the run's folder, or None.
        step: the last step that counts; later records are dropped.
    """

    def __init__(self, folder: Path | None, *, step: int = 0) -> None:
        self._records: list[dict[str, Any]] = []
        self._path = None if folder is None else folder / "log.jsonl"
        self._file = None if folder is None else _cut_back(self._path, step).open("a", encoding="utf-8")
        self._board = None
        self._naming = functools.partial(name_path_in_errors, folder)
        if folder is not None and find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            with self._naming():
                self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    @property
    def records(self) -> list[dict[str, Any]]:
        """All records so far, read from the file where there is one: in memory they would grow with the run."""
        return self._records if self._path is None else read_log(self._path)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Adds one record, flushed at once.

        Args:
            kind: ``"step"`` or ``"epoch"``.
            step: training steps so far.
            values: numbers.

        Raises:
            OSError: it cannot be written; the folder is named.
        """
        record = {"kind": kind, "step": step, **values}
        if self._file is None:
            self._records.append(record)
        with self._naming():
            if self._file is not None:
                self._file.write(_line(record))
                self._file.flush()
            if self._board is not None:
                for name, value in values.items():
                    self._board.add_scalar(name if "/" in name else f"{kind}/{name}", value, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._naming(), contextlib.ExitStack() as sinks:
            for sink in (self._file, self._board):
                if sink is not None:
                    sinks.callback(sink.close)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log file, null as NaN; a last line that a crash left half-written is dropped."""
    lines = path.read_text(encoding="utf-8").splitlines()
    records = []
    for number, line in enumerate(lines):
        try:
            record = json.loads(line)
            records.append({key: math.nan if value is None else value for key, value in record.items()})
        except json.JSONDecodeError:
            if number < len(lines) - 1:
                raise
    return records


def _line(record: dict[str, Any]) -> str:
    """One line of strict JSON: NaN and Inf become null."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in record.items()
    }
    return json.dumps(finite) + "\n"


def _cut_back(path: Path, step: int) -> Path:
    if path.exists():
        records = [record for record in read_log(path) if record["step"] <= step]
        with atomic_write(path, tag="part") as unfinished:
            unfinished.write_text("".join(map(_line, records)), encoding="utf-8")
    return path
