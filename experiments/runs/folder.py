"""The folder of a run: its lock and its settings."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.experiments.data.sealed_files import read_json, write_json
from probattn.experiments.runs.environment import environment
from probattn.inference.io import checkpoint
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.io.files import LOCK, locked


@dataclass(frozen=True)
class RunRecord:
    """Content of a run's ``settings.json``.

    Args:
        name: the preset's name.
        settings: of the run.
        environment: where the training was started.
        data: digests of the training and validation part (see :func:`~probattn.experiments.runs.build.fitted_parts`).
    """

    name: str
    settings: Settings
    environment: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)


def read_record(folder: Path) -> RunRecord:
    """Read ``settings.json`` of the run in a folder.

    Raises:
        SettingsError: the folder holds no run, or settings that cannot be used.
        DamagedFileError: the file is damaged or was edited.
    """
    path, advice = folder / "settings.json", "restore the file that the run was started with"
    try:
        content = read_json(path, advice=advice)
        return RunRecord(**content | {"settings": Settings.from_dict(content["settings"])})
    except FileNotFoundError as error:
        raise SettingsError(f"{folder} holds no run (no settings.json); train one with --out {folder}") from error
    except (SettingsError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(f"{path} cannot be used: {error}; {advice}") from error


def check_free(out: Path, settings: Settings, *, resume: bool) -> None:
    """Check that a run of these settings can be trained in a folder; nothing is written.

    Raises:
        FileExistsError: the folder holds a run and ``resume`` is False, or other files.
        SettingsError: the folder holds a run of other settings than these, apart from epochs and patience.
    """
    if (out / "settings.json").exists():
        if not resume:
            raise FileExistsError(f"{out} holds a run; continue it with --resume, or choose another folder with --out")
        started = read_record(out).settings
        same_options = settings.train.continues(started.train)
        if not (same_options and replace(started, train=settings.train) == settings):
            raise SettingsError(
                f"{out} holds a run of other settings: {'; '.join(changes(out, settings))}; "
                "resume it with its own settings, or choose another folder with --out"
            )
    elif out.exists() and (not out.is_dir() or any(not _is_leftover(path) for path in out.iterdir())):
        raise FileExistsError(f"{out} is not an empty folder and holds no run; choose another with --out")


def changes(out: Path, settings: Settings) -> list[str]:
    """Return the settings that differ from those of the run in a folder, as ``key: its → these``."""
    if not (out / "settings.json").exists():
        return []
    saved, now = read_record(out).settings.flat(), settings.flat()
    return [f"{key}: {saved.get(key)!r} → {now.get(key)!r}" for key in saved | now if saved.get(key) != now.get(key)]


def epochs_done(folder: Path) -> int:
    """Return the number of epochs that the run in a folder has finished; 0 if there is no run.

    Raises:
        CheckpointError: a damaged ``last.pt``.
    """
    last = folder / "last.pt"
    if not last.exists():
        return 0
    return checkpoint.read(last)["extra"]["epoch"]


def read_best(folder: Path) -> dict[str, Any]:
    """Return the content of ``best.pt``, the weights of the best epoch of a run.

    Raises:
        CheckpointError: it is damaged, or missing.
    """
    path = folder / "best.pt"
    if not path.exists():
        raise CheckpointError(f"{folder} has no best.pt: the run has done no epoch; continue with train --resume")
    return checkpoint.read(path)


@contextlib.contextmanager
def claim(
    out: Path, settings: Settings, *, name: str, device: str, data: Mapping[str, str], resume: bool
) -> Iterator[None]:
    """Lock a run's folder, and write its :class:`RunRecord` to ``settings.json`` if there is none.

    Other epochs or patience are written to it, too, and taken back if no epoch is done with them: the checkpoint was
    refused, or nothing was left to train.

    Raises:
        filelock.Timeout: another process holds the lock.
        FileExistsError: another process has written to the folder since :func:`check_free`.
        SettingsError: so it has, or the run has other training data.
        OSError: the folder cannot be written.
    """
    with locked(out):
        check_free(out, settings, resume=resume)
        if not (out / "settings.json").exists():
            write_json(out / "settings.json", asdict(RunRecord(name, settings, environment(device), dict(data))))
        record = read_record(out)
        if record.data != dict(data):
            raise SettingsError(f"{out} was trained with other data: resume it with the same, or choose another folder")
        if record.settings == settings:
            yield
            return
        done = epochs_done(out)
        write_json(out / "settings.json", asdict(replace(record, settings=settings)))
        try:
            yield
        finally:
            if epochs_done(out) == done:
                write_json(out / "settings.json", asdict(record))


def _is_leftover(path: Path) -> bool:
    """Return True for files of a process that was killed before it had written its settings."""
    return path.name == LOCK or path.name.startswith(".settings.json.")
