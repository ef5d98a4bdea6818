"""CIFAR-10 and CIFAR-100 from torchvision's own files, or from folders of images a class that are decoded once."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100
from torchvision.datasets.utils import check_integrity

from probattn.experiments.data.download import fetch
from probattn.experiments.data.images.images import DatasetError, Images
from probattn.experiments.data.images.pickled import read_arrays
from probattn.inference.io.atomic_write import atomic_write


class Cifar(NamedTuple):
    """What a whole CIFAR data set has."""

    title: str
    source: type[CIFAR10]
    num_classes: int
    num_train: int
    num_test: int


CIFAR = {
    "cifar10": Cifar("CIFAR-10", CIFAR10, 10, 50_000, 10_000),
    "cifar100": Cifar("CIFAR-100", CIFAR100, 100, 50_000, 10_000),
}
_SUFFIXES = (".jpg", ".jpeg", ".png")
_FORMATS = ("JPEG", "PNG")
"""What such a file may hold: of others, Pillow would hand PostScript to an interpreter."""


def read(name: str, root: Path) -> tuple[tuple[str, ...], Images, Images]:
    """Class names, training and test part, from the first place under ``root`` that has them.

    Raises:
        DatasetError: no place has them whole, and there is no network.
    """
    spec = CIFAR[name]
    batches = root / spec.source.base_folder
    if batches.is_dir():
        with contextlib.suppress(RuntimeError):  # incomplete or damaged: go on looking
            return _from_batches(spec, batches)
    folders = (root / f"{name}-jpeg", root / name, root)
    for folder in folders:
        if (folder / "train").is_dir() or (folder / "test").is_dir():
            return _from_folders(spec, folder, cache=root / ".probattn-cache" / f"{name}.pt")
    try:
        fetch(spec.source.url, root, filename=spec.source.filename, md5=spec.source.tgz_md5)
        return _from_batches(spec, batches)
    except (OSError, RuntimeError, HTTPException) as error:
        raise DatasetError(
            f"{spec.title} is not in {root.absolute()}. "
            f"Looked for torchvision's {batches.name} "
            f"({'incomplete or damaged' if batches.is_dir() else 'absent'}), "
            f"then for train/ and test/, each with a folder of images a class, in "
            f"{', '.join(str(folder.absolute()) for folder in folders)}. The download failed: {error}. "
            f"Give the folder that holds one of these with --data or the environment variable PROBATTN_DATA, "
            f"or run once with a network."
        ) from error


def _from_batches(spec: Cifar, folder: Path) -> tuple[tuple[str, ...], Images, Images]:
    """From the files that torchvision knows the sums of. It would unpickle them, whatever they held."""
    source, names = spec.source, spec.source.meta
    for file, digest in (*source.train_list, *source.test_list, (names["filename"], names["md5"])):
        if not check_integrity(folder / file, digest):
            raise DatasetError(f"{folder.absolute()} lacks {file}, or it is damaged")
    classes = read_arrays(folder / names["filename"])[names["key"]]
    return tuple(classes), *(_batches(folder, part) for part in (source.train_list, source.test_list))


def _batches(folder: Path, files: Sequence[Sequence[str]]) -> Images:
    parts = [read_arrays(folder / file) for file, _ in files]
    pixels = np.concatenate([part["data"] for part in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return _to_images(pixels, [label for part in parts for label in part.get("labels", part.get("fine_labels"))])


def _to_images(pixels: np.ndarray, labels: Sequence[int]) -> Images:
    """From ``pixels`` uint8 (n, H, W, C)."""
    return Images(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels))


def _from_folders(spec: Cifar, folder: Path, *, cache: Path) -> tuple[tuple[str, ...], Images, Images]:
    train, test = _list_classes(folder / "train"), _list_classes(folder / "test")
    _check_complete(spec, folder, train=train, test=test)
    stamp = _stamp(folder, train=train, test=test)
    parts = _read_cache(cache, stamp=stamp)
    if parts is None:
        parts = _decode(folder / "train", train), _decode(folder / "test", test)
        _write_cache(cache, *parts, stamp=stamp)
    return tuple(train), *parts


def _list_classes(folder: Path) -> dict[str, list[str]]:
    """The names of the images in each class's folder; both sorted, hidden files and folders left out."""
    if not folder.is_dir():
        return {}
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return {
        name: sorted(
            file for file in os.listdir(folder / name) if file.lower().endswith(_SUFFIXES) and not file.startswith(".")
        )
        for name in names
    }


def _check_complete(
    spec: Cifar, folder: Path, *, train: Mapping[str, Sequence[str]], test: Mapping[str, Sequence[str]]
) -> None:
    problems = []
    for part, classes, expected in (("train", train, spec.num_train), ("test", test, spec.num_test)):
        each = expected // spec.num_classes
        uneven = [f"{name} {len(files):,}" for name, files in classes.items() if len(files) != each]
        if uneven or len(classes) != spec.num_classes:
            found = sum(map(len, classes.values()))
            problems.append(
                f"{part}/ holds {found:,} images in {len(classes)} classes, "
                f"expected {expected:,} in {spec.num_classes}, {each:,} a class"
                + (f" (found: {_shorten(uneven)})" if uneven else "")
            )
    for part, missing in (("train", test.keys() - train.keys()), ("test", train.keys() - test.keys())):
        if missing:
            problems.append(f"{part}/ lacks {_shorten(sorted(missing))}")
    if problems:
        raise DatasetError(
            f"{folder.absolute()} is not a complete {spec.title}: {'; '.join(problems)}. Unpack it there "
            f"again, or give another folder with --data or the environment variable PROBATTN_DATA."
        )


def _shorten(items: Sequence[str], *, most: int = 5) -> str:
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


def _stamp(
    folder: Path, *, train: Mapping[str, Sequence[str]], test: Mapping[str, Sequence[str]]
) -> dict[str, str | int]:
    """What a cache of ``folder`` is known by."""
    parts = {"train": train, "test": test}
    folders = [folder / part / name for part, classes in parts.items() for name in (".", *classes)]
    return {
        "folder": folder.name,
        "files": sum(len(files) for classes in parts.values() for files in classes.values()),
        "modified_ns": max(path.stat().st_mtime_ns for path in folders),
    }


def _read_cache(path: Path, *, stamp: Mapping[str, str | int]) -> tuple[Images, Images] | None:
    """Training and test part, or None if there is no sound cache with this stamp."""
    try:
        cached = torch.load(path, weights_only=True)
        fresh = cached["stamp"] == stamp
        return (Images(*cached["train"]), Images(*cached["test"])) if fresh else None
    except Exception:  # damage shows in many ways, and the cache can always be made again
        return None


def _write_cache(path: Path, train: Images, test: Images, *, stamp: Mapping[str, str | int]) -> None:
    """Write the cache in one step, so that no reader sees half of it; without leave to write, do nothing."""
    content = {"stamp": stamp, "train": (train.images, train.labels), "test": (test.images, test.labels)}
    with contextlib.suppress(OSError, RuntimeError):  # torch.save reports a failing disk as RuntimeError
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as unfinished:
            torch.save(content, unfinished)


def _decode(folder: Path, classes: Mapping[str, Sequence[str]]) -> Images:
    """All images of one part, class by class; the threads hide the latency of opening many small files."""
    with ThreadPoolExecutor(4) as pool:
        pixels = list(pool.map(lambda name: _decode_class(folder / name, classes[name]), classes))
    labels = np.repeat(np.arange(len(pixels)), [len(images) for images in pixels])
    return _to_images(np.concatenate(pixels), labels)


def _decode_class(folder: Path, files: Sequence[str]) -> np.ndarray:
    return np.stack([_decode_image(folder / file) for file in files])


def _decode_image(path: Path) -> np.ndarray:
    """Pixels, uint8 (32, 32, 3)."""
    try:
        with Image.open(path, formats=_FORMATS) as image:
            if image.mode != "RGB" or image.size != (32, 32):
                found = f"{image.mode} {image.width}×{image.height}"
                raise DatasetError(f"{path.absolute()} is {found}, expected RGB 32×32")
            image.load()
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # a broken PNG: SyntaxError
        raise DatasetError(f"cannot decode {path.absolute()}: {error}; put a sound copy there") from error
