"""Damage a file that the library wrote: its reader refuses it by the documented error, or reads the same as before."""

import functools
import random
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from probattn.experiments.data.cache import read_or_compute
from probattn.experiments.data.sealed_files import DamagedFileError
from probattn.experiments.data.text.word_tokenizer import WordTokenizer
from probattn.experiments.evaluation.evaluated_run import read_evaluated_run
from probattn.experiments.runs.folder import read_record
from probattn.experiments.runs.load import open_run
from probattn.inference import CheckpointError, load_safetensors
from probattn.inference.io import checkpoint
from probattn.inference.training.run_log import read_log
from tests.fuzz.kills import KEP, finish, flat, prepare_evaluated_runs

DAMAGES = 50
"""Damages of one try."""


def fuzz_damage(chosen: random.Random, folder: Path) -> str:
    """Damage one kind of file :data:`DAMAGES` times.

    Args:
        chosen: source of the file and of the damages.
        folder: empty folder.

    Returns:
        The kind of the file, and the number of damages that were refused.

    Raises:
        AssertionError: damaged content was accepted, or refused by an error of another class.
    """
    name = chosen.choice(sorted(READERS))
    relative, read = READERS[name]
    whole = (_files() / relative).read_bytes()
    prepare_evaluated_runs(folder)
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(whole)
    expected, refused = read(path), 0
    for _ in range(DAMAGES):
        damaged = damage(whole, chosen)
        path.write_bytes(damaged)
        try:
            found = read(path)
        except (CheckpointError, DamagedFileError) as error:
            refused += 1
            if str(path) not in str(error):
                raise AssertionError(f"{name}: {error} does not name {path}") from error
        else:
            intact = found == expected or (name == "log" and found == expected[: len(found)])
            assert intact, f"{name}: other content of {len(damaged)} bytes was accepted"
    return f"{name}, {refused} of {DAMAGES} refused"


def damage(content: bytes, chosen: random.Random) -> bytes:
    """Return bytes with flipped bits, a part cut, repeated, zeroed or replaced by noise."""
    kind, data = chosen.randrange(6), bytearray(content)
    start, end = sorted(chosen.randrange(len(data)) for _ in range(2))
    if kind <= 1:
        for _ in range(chosen.choice((1, 1, 2, 8))):
            data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    elif kind == 2:
        del data[start:]
    elif kind == 3:
        data[start:start] = data[start:end]
    elif kind == 4:
        data[start:end] = bytes(end - start)
    else:
        end = min(end, start + 64)
        data[start:end] = chosen.randbytes(end - start)
    return bytes(data)


def _checkpoint(path: Path) -> str:
    return repr(flat(checkpoint.read(path)))


def _predictions(path: Path) -> str:
    run = read_evaluated_run(path.parents[2])
    return repr(flat({name: vars(each) for name, each in run.predictions(["test"], "posterior").items()}))


def _weights(path: Path) -> str:
    model, guide = _networks()
    load_safetensors(path, model, guide)
    return repr(flat([model.state_dict(), guide.state_dict()]))


def _metrics(path: Path) -> str:
    return repr(read_evaluated_run(path.parent))


def _settings(path: Path) -> str:
    return repr(asdict(read_record(path.parent)))


def _tokenizer(path: Path) -> str:
    return repr(WordTokenizer.load(path).encode("a word or two").tolist())


def _cache(path: Path) -> list:
    def refuse() -> Any:
        raise DamagedFileError(f"{path} is computed again")

    return flat(read_or_compute(path, stamp=1, compute=refuse))


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "best.pt": (f"{KEP}/best.pt", _checkpoint),
    "last.pt": (f"{KEP}/last.pt", _checkpoint),
    "predictions": (f"{KEP}/predictions/posterior/test.pt", _predictions),
    "weights": ("weights.safetensors", _weights),
    "settings": (f"{KEP}/settings.json", _settings),
    "metrics": (f"{KEP}/metrics.json", _metrics),
    "log": (f"{KEP}/log.jsonl", lambda path: [repr(record) for record in read_log(path)]),
    "tokenizer": ("tokenizer.json", _tokenizer),
    "cache": ("cache/data.pt", _cache),
}


@functools.cache
def _networks() -> tuple[torch.nn.Module, torch.nn.Module]:
    run = open_run(_files() / KEP)
    return run.model, run.guide


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="probattn-fuzz-")


@functools.cache
def _files() -> Path:
    """Return a folder with one file of each kind."""
    folder = Path(_folder().name)
    prepare_evaluated_runs(folder)
    finish(("export", KEP, "--out", "weights.safetensors"), cwd=folder)
    WordTokenizer.fit(["a word or two"], max_length=5, min_count=1, spelling=3).save(folder / "tokenizer.json")
    read_or_compute(folder / "cache" / "data.pt", stamp=1, compute=lambda: [torch.randn(20), {"name": "images"}])
    return folder
