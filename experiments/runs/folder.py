"""The folder of a run: its lock and its settings."""

import contextlib
import json
import platform
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch

import probattn
from probattn.experiments.config.presets import preset
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError
from probattn.inference.io.files import locked, write_bytes

SETTINGS, WEIGHTS = "settings.json", "best.pt"


@dataclass(frozen=True)
class RunRecord:
    """Content of a run's ``settings.json``.

    Args:
        name: the preset's name.
        settings: of the run.
        environment: versions and hardware at the start of the training.
        data: digests of the training and validation part.
        summary: lines that say what was read at the start of the training.
    """

    name: str
    settings: Settings
    environment: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    summary: list[str] = field(default_factory=list)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what ``dataclasses.asdict`` returns of a record."""
        return cls(**{**content, "settings": Settings.from_dict(content["settings"])})


def read_record(folder: Path) -> RunRecord:
    """Read ``settings.json`` of the run in a folder.

    Raises:
        SettingsError: the folder holds no run, or settings that cannot be used.
    """
    path = folder / SETTINGS
    if not path.is_file():
        raise SettingsError(f"{folder} holds no run (no {SETTINGS}); train one with --out {folder}")
    try:
        return RunRecord.from_dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SettingsError(f"{path} cannot be used: {error}; restore the file, or train the run again") from error


def environment(device: str) -> dict[str, str]:
    """Return the versions of the library and of PyTorch, and the hardware of a device."""
    cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    hardware = torch.cuda.get_device_name() if device == "cuda" else cpu
    return {"probattn": probattn.__version__, "torch": torch.__version__, "hardware": hardware}


def check_free(out: Path, settings: Settings, *, resume: bool) -> None:
    """Check that a run of these settings can be trained in a folder; nothing is written. Hidden files may be there.

    Raises:
        FileExistsError: the folder holds other files, or a run while ``resume`` is False.
        SettingsError: the folder holds a run of other settings, apart from more epochs or patience.
    """
    if (out / SETTINGS).exists():
        if not resume:
            raise FileExistsError(f"{out} holds a run; continue it with --resume, or choose another folder with --out")
        started = read_record(out).settings
        if not (settings.train.continues(started.train) and replace(started, train=settings.train) == settings):
            changes = ", ".join(settings.changes_from(started))
            raise SettingsError(f"{out} holds a run without {changes}: resume it without, or choose another --out")
    elif out.exists() and not (out.is_dir() and all(path.name.startswith(".") for path in out.iterdir())):
        raise FileExistsError(f"{out} is not an empty folder and holds no run; choose another with --out")


@contextlib.contextmanager
def claim(out: Path, record: RunRecord, *, resume: bool) -> Iterator[None]:
    """Lock a run's folder, and write its record there; more epochs or patience replace the former ones.

    Raises:
        filelock.Timeout: another process holds the lock.
        FileExistsError, SettingsError: as for :func:`check_free`, or the run has other training data.
    """
    with locked(out):
        check_free(out, record.settings, resume=resume)
        started = replace(read_record(out), settings=record.settings) if (out / SETTINGS).exists() else record
        if started.data != record.data:
            raise SettingsError(f"{out} was trained with other data: resume it with the same, or choose another folder")
        write_bytes(out / SETTINGS, json.dumps(asdict(started), indent=2).encode(), tag="part")
        yield


def train_command(name: str, settings: Settings) -> str:
    """Return the ``probattn train`` command of a preset with these settings."""
    changes = settings.changes_from(preset(name))
    return " ".join(["probattn train", name, *(f"--set {shlex.quote(change)}" for change in changes)])
