"""Folders that share a model, as Hugging Face's libraries write them: weights, configuration and model card.

==================== ===============================================================================================
File                 Content
==================== ===============================================================================================
``model.safetensors`` weights of model and guide, with the settings of layers that their shapes do not show
``config.json``      ``config``, what the model is built from, and ``files``, the digests of all files but the card
``README.md``        the model card, for readers; nothing is read from it
==================== ===============================================================================================

None of them can hold code. A folder whose files do not belong together is refused.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from probattn.inference.io.atomic_write import write_bytes, write_text
from probattn.inference.io.checkpoint import CheckpointError
from probattn.inference.io.hub import find_pretrained
from probattn.inference.io.safetensors_io import load_safetensors, save_safetensors
from probattn.inference.io.sealed_files import DamagedFileError, read_json, write_json

FORMAT = "probattn-pretrained-1"
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
"""Names of the files, which are those of the Hugging Face hub."""
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
        CheckpointError: the state of a module holds something else than tensors.
        OSError: a file cannot be written; names it.
    """
    folder, files = Path(save_directory), dict(files or {})
    taken = sorted(files.keys() & {WEIGHTS, CONFIG, CARD})
    if taken:
        raise ValueError(f"{taken[0]} is written by save_pretrained itself; choose another name for that file")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).unlink(missing_ok=True)  # a folder without it is refused, so that nobody reads half of a model
    save_safetensors(folder / WEIGHTS, model, guide)
    for name, content in files.items():
        write_bytes(folder / name, content)
    if not (folder / CARD).exists():
        write_text(folder / CARD, card)
    digests = {name: _digest(folder / name) for name in (WEIGHTS, *files)}
    write_json(folder / CONFIG, {"format": FORMAT, "files": digests, "config": dict(config or {})})


def load_pretrained(
    name: str | Path,
    model: nn.Module,
    guide: nn.Module | None = None,
    *,
    force_download: bool = False,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    revision: str | None = None,
) -> dict[str, Any]:
    """Load the weights of a shared model and its guide, all or nothing.

    Args:
        name: folder of :func:`save_pretrained`, or the name of a model of the Hugging Face hub.
        model, guide: modules of the architecture that was saved; AutoGuides must be materialised first.
        force_download, token, cache_dir, local_files_only, revision: as for ``huggingface_hub``'s ``from_pretrained``.

    Returns:
        The ``config`` that was saved.

    Raises:
        CheckpointError: missing, damaged, of another architecture, or files that do not belong together.
        MissingExtraError: no folder of that name, and ``huggingface_hub`` is not installed.
    """
    folder = find_pretrained(
        name,
        force_download=force_download,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
        revision=revision,
    )
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
    path, advice = folder / CONFIG, "get the whole folder again"
    try:
        content = read_json(path, advice=advice)
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} holds no model that save_pretrained wrote: it has no {CONFIG}") from error
    except DamagedFileError as error:
        raise CheckpointError(str(error)) from error
    files, config = content.get("files"), content.get("config")
    if content.get("format") != FORMAT or not isinstance(files, dict) or not isinstance(config, dict):
        raise CheckpointError(f"{path} is not of format {FORMAT}, which this version of probattn reads; {advice}")
    for name, expected in files.items():
        if Path(name).name != name or not (folder / name).is_file():
            raise CheckpointError(f"{folder} lacks {name}, which its {CONFIG} names; {advice}")
        if _digest(folder / name) != expected:
            raise CheckpointError(f"{folder / name} is damaged, or not the file that {CONFIG} belongs to; {advice}")
    if WEIGHTS not in files:
        raise CheckpointError(f"{path} does not name {WEIGHTS}; {advice}")
    return config


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
