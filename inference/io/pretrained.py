"""Folders that share a model, as Hugging Face's libraries write them, also on the hub (extra ``huggingface``).

==================== ===============================================================================================
File                 Content
==================== ===============================================================================================
``model.safetensors`` weights of model and guide, with the settings of layers that their shapes do not show
``config.json``      ``config``, what the model is built from, and ``files``, the SHA-256 of all files but the card
``README.md``        the model card, for readers; nothing is read from it
==================== ===============================================================================================

None of them can hold code. A folder whose files do not belong together is refused.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from probattn.inference.imports import extra
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.io.files import write_bytes, write_text
from probattn.inference.io.safetensors_io import load_safetensors, save_safetensors

FORMAT = "probattn-pretrained-1"
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
"""Names of the files, which are those of the Hugging Face hub."""
FILES = ["*.json", "*.safetensors", CARD]
"""Patterns of the files of a model, the only ones that are downloaded and uploaded."""
PLAIN_CARD = """---
library_name: probattn
tags:
- uncertainty
---

# Model with probabilistic attention

Load it into a model of the same architecture, which `config.json` describes:

```python
from probattn.inference import load_pretrained

load_pretrained("FOLDER or USER/NAME", model, guide)
```
"""


def save_pretrained(
    save_directory: str | Path,
    model: nn.Module,
    guide: nn.Module | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    card: str = PLAIN_CARD,
) -> None:
    """Write model and guide to a folder that can be shared; a ``README.md`` that is there already stays.

    Args:
        save_directory: the folder, created if it is missing.
        model, guide: modules whose state is saved.
        config: whatever the model can be built from again, as JSON.
        files: further files, by name.
        card: text of ``README.md``.

    Raises:
        TypeError, ValueError: a config that is no JSON, or a file that has one of the names above.
        OSError: a file cannot be written; names it.
    """
    folder, files = Path(save_directory), dict(files or {})
    if reserved := files.keys() & {WEIGHTS, CONFIG, CARD}:
        raise ValueError(f"{', '.join(reserved)} is written by save_pretrained itself; choose another name")
    json.dumps(config)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).unlink(missing_ok=True)  # a folder without it is refused, so that nobody reads half of a model
    save_safetensors(folder / WEIGHTS, model, guide)
    for name, content in files.items():
        write_bytes(folder / name, content)
    if not (folder / CARD).exists():
        write_text(folder / CARD, card)
    digests = {name: _digest(folder / name) for name in (WEIGHTS, *files)}
    content = {"format": FORMAT, "files": digests, "config": dict(config or {})}
    write_text(folder / CONFIG, json.dumps(content, indent=2) + "\n")


def load_pretrained(
    name: str | Path, model: nn.Module, guide: nn.Module | None = None, **options: Any
) -> dict[str, Any]:
    """Load the weights of a shared model and its guide, all or nothing, and return the ``config`` that was saved.

    Args:
        name: folder of :func:`save_pretrained`, or the name of a model of the Hugging Face hub.
        model, guide: modules of the architecture that was saved; AutoGuides must be materialised first.
        options: of the download, as for :func:`find_pretrained`.

    Raises:
        CheckpointError: missing, damaged, of another architecture, or files that do not belong together.
        MissingExtraError: no folder of that name, and ``huggingface_hub`` is not installed.
    """
    folder = find_pretrained(name, **options)
    config = read_config(folder)
    load_safetensors(folder / WEIGHTS, model, guide)
    return config


def is_pretrained(folder: Path) -> bool:
    """Return True if a folder has a configuration of a shared model."""
    return (folder / CONFIG).is_file()


def read_config(folder: Path) -> dict[str, Any]:
    """Return the ``config`` of a shared model whose files are intact and belong together.

    Raises:
        CheckpointError: they are not.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no model that save_pretrained wrote: it has no {CONFIG}")
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        for name in {WEIGHTS, *content["files"]}:
            if Path(name).name != name or _digest(folder / name) != content["files"][name]:
                raise ValueError(f"{name} is damaged, or another one")
        return dict(content["config"])
    except (ValueError, TypeError, KeyError, RecursionError, OSError) as error:
        raise CheckpointError(f"{path} is damaged, or its files do not match it ({error}): get all again") from error


def find_pretrained(name: str | Path, **options: Any) -> Path:
    """Return the folder of a model: one that exists, or the download of a model of the hub.

    Args:
        name: a folder, or the name of a repository on the hub, such as ``"user/model"``.
        options: of ``huggingface_hub.snapshot_download``: ``revision``, ``token``, ``cache_dir``, ``force_download``,
            ``local_files_only``.

    Raises:
        MissingExtraError: no folder of that name, and ``huggingface_hub`` is not installed.
        CheckpointError: the hub has no such model, or cannot be reached.
    """
    if Path(name).is_dir():
        return Path(name)
    with extra("huggingface", needed_by=f"{name} is not a folder here, and a model of the Hugging Face hub"):
        from huggingface_hub import snapshot_download
    try:
        return Path(snapshot_download(str(name), allow_patterns=FILES, library_name="probattn", **options))
    except TypeError:
        raise
    except Exception as error:  # of many classes, those of the network included
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{name} is neither a folder here nor a model on the hub: {reason}") from error


def upload_pretrained(
    folder: str | Path, repo_id: str, *, private: bool | None = None, token: str | bool | None = None, **options: Any
) -> str:
    """Upload a folder of :func:`save_pretrained` to the hub, and return the address of the commit.

    Args:
        folder: the folder.
        repo_id: repository, such as ``"user/model"``; created if it does not exist.
        private: visibility of a new repository; None: the default of your account.
        token: access token, or True for that of ``hf auth login``; None uses it if there is one.
        options: of ``huggingface_hub.HfApi.upload_folder``, such as ``commit_message``, ``revision``, ``create_pr``.

    Raises:
        MissingExtraError: ``huggingface_hub`` is not installed.
        Exception: errors of ``huggingface_hub``, such as those of the network and of permissions.
    """
    with extra("huggingface", needed_by="push_to_hub"):
        from huggingface_hub import HfApi
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    return str(api.upload_folder(repo_id=repo_id, folder_path=folder, allow_patterns=FILES, **options).commit_url)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
