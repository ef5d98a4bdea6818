"""What a run's folder says of the run: its settings, the command that made it, where it was trained."""

import contextlib
import json
import platform
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from probattn.experiments.config.settings import Settings, SettingsError, from_dict
from probattn.inference.io.atomic_write import atomic_write
from probattn.inference.io.lock import LOCK, locked


def read_settings(folder: Path) -> tuple[Settings, str]:
    """Settings and preset name of the run in a folder.

    Raises:
        SettingsError: no run there, or settings that cannot be read.
    """
    path = folder / "settings.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return from_dict(content["settings"]), content["name"]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SettingsError(f"{folder} holds no run (no settings.json); train one with --out {folder}") from error
    except KeyError as error:
        raise SettingsError(f"{path} lacks {error}; put back the file that the run was started with") from error
    except (ValueError, TypeError) as error:
        raise SettingsError(
            f"{path} cannot be used: {error}; put back the file that the run was started with"
        ) from error


def command(name: str, settings: Settings) -> str:
    """The command that trains a run of these settings."""
    from probattn.experiments.config.presets import PRESETS

    defaults = PRESETS[name].flat() if name in PRESETS else {}
    changes = [
        f"--set {shlex.quote(f'{key}={value}')}"
        for key, value in settings.flat().items()
        if (key, value) not in defaults.items()
    ]
    return " ".join(["probattn train", name, *changes])


def environment(device: str) -> dict[str, str]:
    """Versions and hardware of this process, for the record."""
    hardware = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    )
    return {"probattn": version("probattn"), "torch": torch.__version__, "hardware": hardware}


def trained_on(folder: Path) -> dict[str, str]:
    """The environment that the run in a folder was started in."""
    return json.loads((folder / "settings.json").read_text(encoding="utf-8")).get("environment", {})


def write_json(path: Path, content: Any) -> None:
    """Writes JSON beside and renames, NaN as null."""
    clean = json.loads(json.dumps(content), parse_constant=lambda _: None)
    with atomic_write(path, tag="part") as unfinished:
        unfinished.write_text(json.dumps(clean, indent=2) + "\n", encoding="utf-8")


def check_free(out: Path, settings: Settings, *, resume: bool) -> None:
    """Refuses a folder whose files a run of these settings would harm, before anything is written.

    Raises:
        FileExistsError: the folder holds a run and ``resume`` is False, or other files.
        SettingsError: it holds a run of other settings.
    """
    if (out / "settings.json").exists():
        if not resume:
            raise FileExistsError(f"{out} holds a run; go on with --resume, or choose another folder with --out")
        saved = read_settings(out)[0].flat()
        now = settings.flat()
        changed = [f"{k}: {saved.get(k)!r} → {now.get(k)!r}" for k in saved | now if saved.get(k) != now.get(k)]
        if changed:
            raise SettingsError(
                f"{out} holds a run of other settings: {'; '.join(changed)}; "
                "resume it with its own, or choose another folder with --out"
            )
    elif out.exists() and (not out.is_dir() or any(not _is_left_over(path) for path in out.iterdir())):
        raise FileExistsError(f"{out} is not an empty folder and holds no run; choose another with --out")


@contextlib.contextmanager
def claim(out: Path, settings: Settings, *, name: str, device: str, resume: bool) -> Iterator[None]:
    """Holds a run's folder, in which it writes ``settings.json`` where there is none yet.

    Raises:
        BlockingIOError: another process holds it.
        FileExistsError, SettingsError: another process has been there since :func:`check_free`.
        OSError: it cannot be written.
    """
    with locked(out):
        check_free(out, settings, resume=resume)
        if not (out / "settings.json").exists():
            content = {"name": name, "settings": asdict(settings), "environment": environment(device)}
            write_json(out / "settings.json", content)
        yield


def _is_left_over(path: Path) -> bool:
    """Whether the file is what a run killed before it had written its settings left behind."""
    return path.name == LOCK or path.name.startswith(".settings.json.")
