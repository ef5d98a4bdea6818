"""The folder of a run: its lock and its settings."""

import contextlib
import json
import platform
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import BaseModel

import probattn
from probattn.experiments.config import layers
from probattn.experiments.config.data import NAMES, stored_settings
from probattn.experiments.config.parts import LIKELIHOOD, PATHS
from probattn.experiments.config.presets import preset
from probattn.experiments.config.schema import Trust, check_trusted
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import MissingCodeError, SettingsError
from probattn.experiments.data.errors import UntrustedCodeError
from probattn.experiments.runs import build
from probattn.inference.io.files import locked, read_json, undamaged, write_bytes

SETTINGS = "settings.json"
WEIGHTS = "best.pt"


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
    def from_dict(
        cls, content: Any, *, where: Path, trust_code: Trust = False, with_data: bool = True
    ) -> Self:
        """Read what ``dataclasses.asdict`` returns of a record.

        Args:
            content: of a file, which somebody else may have written.
            where: its folder, for errors.
            trust_code: which names that are not this library's may be imported.
            with_data: False never imports the function that loads the data set.

        Raises:
            UntrustedCodeError: a name that is not trusted.
            Exception: anything else that is wrong; of many types.
        """
        stored = StoredRecord.model_validate(content)
        layer = stored.settings["layer"]
        data = stored.settings["data"]
        named = [
            ("layer", layer.get("name"), layers.KNOWN),
            ("likelihood", data.get("likelihood", LIKELIHOOD), tuple(build.KNOWN)),
        ]
        is_read = with_data or data["name"] in NAMES
        if is_read:
            named.append(("data set", data["name"], NAMES))
        for kind, name, known in named:
            check_trusted(kind, name, known, trust_code=trust_code, where=where)
        parts = stored.settings if is_read else stored.settings | {"data": stored_settings(data)}
        return cls(**dict(stored) | {"settings": Settings.from_dict(parts)})


class StoredRecord(BaseModel, extra="forbid"):
    """Schema of a run's record in a file."""

    name: str
    settings: dict[str, Any]
    environment: dict[str, str] = {}
    data: dict[str, str] = {}
    summary: list[str] = []


def read_record(folder: Path, *, trust_code: Trust = False, with_data: bool = True) -> RunRecord:
    """Read ``settings.json`` of the run in a folder; arguments as for :meth:`RunRecord.from_dict`.

    Raises:
        UntrustedCodeError: the settings name code that is not trusted.
        SettingsError: the folder holds no run, or settings that cannot be used.
    """
    path = folder / SETTINGS
    if not path.is_file():
        raise SettingsError(f"{folder} holds no run (no {SETTINGS}); train one with --out {folder}")
    with undamaged(path, SettingsError, passing=(UntrustedCodeError, MissingCodeError)):
        content = read_json(path)
        return RunRecord.from_dict(
            content, where=folder, trust_code=trust_code, with_data=with_data
        )


def environment(device: str) -> dict[str, str]:
    """Return the versions of the library and of PyTorch, and the hardware of a device."""
    cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    hardware = torch.cuda.get_device_name() if device == "cuda" else cpu
    return {"probattn": probattn.__version__, "torch": torch.__version__, "hardware": hardware}


def check_free(out: Path, settings: Settings, *, resume: bool) -> None:
    """Check that a run of these settings can be trained in a folder; nothing is written. Hidden
    files may be there.

    Raises:
        FileExistsError: the folder holds other files, or a run while ``resume`` is False.
        SettingsError: the folder holds a run of other settings, apart from more epochs or patience.
    """
    if (out / SETTINGS).exists():
        if not resume:
            raise FileExistsError(
                f"{out} holds a run; continue it with --resume, or choose another folder with --out"
            )
        try:
            started = read_record(out, trust_code=settings.names()).settings
        except UntrustedCodeError as error:
            raise SettingsError(
                f"{out} holds a run of other settings ({error}): choose another --out"
            ) from error
        moved = (
            PATHS if (out / "last.pt").exists() else PATHS[:1]
        )  # an encoder is read for the first epoch
        changes = [
            change for change in settings.changes_from(started) if not change.startswith(moved)
        ]
        is_other = any(not change.startswith("train.") for change in changes)
        if is_other or not settings.train.continues(started.train):
            listed = ", ".join(changes)
            raise SettingsError(
                f"{out} holds a run without {listed}: resume it without, or choose another --out"
            )
    elif out.exists() and not (
        out.is_dir() and all(path.name.startswith(".") for path in out.iterdir())
    ):
        raise FileExistsError(
            f"{out} is not an empty folder and holds no run; choose another with --out"
        )


@contextlib.contextmanager
def claim(out: Path, record: RunRecord, *, resume: bool) -> Iterator[None]:
    """Lock a run's folder, and write its record there; more epochs or patience replace the former
    ones.

    Raises:
        filelock.Timeout: another process holds the lock.
        FileExistsError, SettingsError: as for :func:`check_free`, or the run has other training
            data.
    """
    with locked(out):
        check_free(out, record.settings, resume=resume)
        started = record
        if (out / SETTINGS).exists():
            started = read_record(out, trust_code=record.settings.names())
            started = replace(started, settings=record.settings)
        if started.data != record.data:
            raise SettingsError(
                f"{out} was trained with other data: resume it with the same, or choose another "
                "folder"
            )
        write_bytes(out / SETTINGS, json.dumps(asdict(started), indent=2).encode(), tag="part")
        yield


def train_command(name: str, settings: Settings, *, with_paths: bool = True) -> str:
    """Return the ``probattn train`` command of a preset with these settings.

    Args:
        name: of the preset.
        settings: of the run.
        with_paths: False shortens absolute paths to their names.
    """
    words = ["probattn train", name]
    for change in settings.changes_from(preset(name)):
        key, _, value = change.partition("=")
        words.append(
            f"--set {shlex.quote(change if with_paths else f'{key}={without_paths(value)}')}"
        )
    return " ".join(words)


def without_paths(values: Any) -> Any:
    """Return nested settings in which absolute paths, which say much about a machine, are shortened
    to their names."""
    if isinstance(values, dict):
        return {key: without_paths(value) for key, value in values.items()}
    return Path(values).name if isinstance(values, str) and Path(values).is_absolute() else values
