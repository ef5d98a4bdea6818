"""Folders that share a model, as Hugging Face's libraries write them, also on the hub (extra
``huggingface``).

===================== ====================================================================
File                  Content
===================== ====================================================================
``model.safetensors`` weights of model and guide, with the settings of layers that their
                      shapes do not show
``config.json``       ``config``, what the model is built from, and ``files``, the SHA-256
                      of all files but the card
``README.md``         the model card, for readers; nothing is read from it
===================== ====================================================================

None of them can hold code. A folder whose files do not belong together is refused, and so is one
with files outside of it.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from probattn.inference.imports import extra
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.io.files import (
    file_digest,
    read_json,
    regular_file,
    undamaged,
    write_files,
)
from probattn.inference.io.safetensors_io import load_safetensors, weights_as_bytes

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "README.md"
"""Names of the files, which are those of the Hugging Face hub."""
FILES = ["*.json", "*.safetensors", CARD]
"""Patterns of the files of a model, the only ones that are downloaded and uploaded."""
HUB = "hf://"
"""Beginning of the names of models on the hub; every other name is that of a folder."""
PLAIN_CARD = "---\nlibrary_name: probattn\n---\nLoad it by `probattn.inference.load_pretrained`.\n"


def save_pretrained(
    save_directory: str | Path,
    model: nn.Module,
    guide: nn.Module | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    card: str = PLAIN_CARD,
) -> None:
    """Write model and guide to a folder that can be shared; a ``README.md`` that is there already
    stays.

    Args:
        save_directory: the folder, created if it is missing.
        model, guide: modules whose state is saved.
        config: whatever the model can be built from again, as JSON.
        files: further files, by name.
        card: text of ``README.md``.

    Raises:
        TypeError, ValueError: a config that is no JSON.
        OSError: a file cannot be written; names it.
    """
    folder = Path(save_directory)
    content = dict(files or {})
    content[WEIGHTS] = weights_as_bytes(model, guide)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    description = {"files": digests, "config": dict(config or {})}
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / CARD).exists():
        content[CARD] = card.encode()
    content[CONFIG] = json.dumps(description, indent=2).encode()
    write_files({folder / name: data for name, data in content.items()})


def load_pretrained(
    name: str | Path, model: nn.Module, guide: nn.Module | None = None, **options: Any
) -> dict[str, Any]:
    """Load the weights of a shared model and its guide, all or nothing, and return the ``config``
    that was saved.

    Args:
        name: folder of :func:`save_pretrained`, or ``hf://USER/NAME`` of the Hugging Face hub.
        model, guide: modules of the architecture that was saved; AutoGuides must be materialised
            first.
        options: of the download, as for :func:`find_pretrained`.

    Raises:
        CheckpointError: missing, damaged, of another architecture, or files that do not belong
            together.
        MissingExtraError: a name of the hub, and ``huggingface_hub`` is not installed.
    """
    folder = find_pretrained(name, **options)
    config = read_config(folder)
    load_safetensors(folder / WEIGHTS, model, guide)
    return config


def read_config(folder: Path, *needed: str) -> dict[str, Any]:
    """Return the ``config`` of a shared model whose files are intact and belong together.

    Args:
        folder: of the model.
        needed: files besides the weights that must be among its files.

    Raises:
        CheckpointError: they are not.
    """
    advice = "it belongs together with the files that it lists, so copy the whole folder again"
    with undamaged(folder / CONFIG, CheckpointError, advice=advice):
        content = read_json(file_inside(folder, CONFIG))
        for name in {WEIGHTS, *needed, *content["files"]}:
            if file_digest(file_inside(folder, name)) != content["files"][name]:
                raise ValueError(f"{name} is another file")
        return dict(content["config"])


def find_pretrained(name: str | Path, **options: Any) -> Path:
    """Return the folder of a model: one that exists, or the download of a model of the hub.

    Args:
        name: a folder, or a repository on the hub, such as ``"hf://user/model"``.
        options: of ``huggingface_hub.snapshot_download``: ``revision``, ``token``, ``cache_dir``,
            ``force_download``, ``local_files_only``.

    Raises:
        MissingExtraError: ``huggingface_hub`` is not installed.
        OSError: there is no such folder; the hub has no such model, or cannot be reached.
    """
    if not str(name).startswith(HUB):
        if not Path(name).is_dir():
            raise FileNotFoundError(
                f"there is no folder {name}: correct the name, train a run with --out {name}, or "
                f"name a model of the Hugging Face hub as {HUB}USER/NAME"
            )
        return Path(name)
    with extra("huggingface", needed_by=str(name)):
        from huggingface_hub import snapshot_download
    try:
        repository = str(name).removeprefix(HUB)
        return Path(snapshot_download(repository, allow_patterns=FILES, **options))
    except (OSError, ValueError) as error:
        problem = str(error).strip().partition("\n")[0]
        raise OSError(f"{name} cannot be read: {problem}") from error


def upload_pretrained(
    folder: str | Path, repo_id: str, *, private: bool | None = None, **options: Any
) -> str:
    """Upload a folder of :func:`save_pretrained` to the hub, and return the address of the commit.

    Args:
        folder: the folder.
        repo_id: repository, such as ``"user/model"``; created if it does not exist.
        private: visibility of a new repository; None: the default of your account.
        options: of ``huggingface_hub.upload_folder``, such as ``commit_message``, ``revision``,
            ``create_pr``.

    Raises:
        MissingExtraError: ``huggingface_hub`` is not installed.
        Exception: errors of ``huggingface_hub``, such as those of the network and of permissions.
    """
    with extra("huggingface", needed_by="push_to_hub"):
        from huggingface_hub import create_repo, upload_folder
    repo_id = create_repo(
        repo_id, private=private, token=options.get("token"), exist_ok=True
    ).repo_id
    return str(
        upload_folder(
            repo_id=repo_id, folder_path=folder, allow_patterns=FILES, **options
        ).commit_url
    )


def file_inside(folder: Path, name: str) -> Path:
    """Return a regular file of a folder by its plain name.

    A link may lead to another file of the folder, or from the hub's cache, ``snapshots/REVISION``,
    to its ``blobs``.

    Raises:
        OSError, ValueError: there is no such file; a path, a device, a pipe, or a link that leads
            elsewhere.
    """
    home = folder.resolve()
    path = folder / name
    if not name or path.name != name:
        raise ValueError(f"{name!r} is no plain name of a file")
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    if not any(path.resolve().is_relative_to(place) for place in allowed):
        raise ValueError(f"{name} leads out of the folder")
    return regular_file(path)
