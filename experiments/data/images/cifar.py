"""CIFAR-10 and CIFAR-100 from torchvision's files, or from folders of images by class, which are decoded once."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torchvision.datasets import CIFAR10, CIFAR100

from probattn.experiments.data import cache
from probattn.experiments.data.download import download_and_extract
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import is_image, open_image
from probattn.experiments.data.images.labelled_images import Images


class CifarSpec(NamedTuple):
    """Title, torchvision class and complete size of a CIFAR data set."""

    title: str
    source: type[CIFAR10]
    num_classes: int
    num_train: int
    num_test: int


CIFAR = {
    "cifar10": CifarSpec("CIFAR-10", CIFAR10, 10, 50_000, 10_000),
    "cifar100": CifarSpec("CIFAR-100", CIFAR100, 100, 50_000, 10_000),
}
Files = Mapping[str, Sequence[str]]
"""The names of the images of each class."""


def read(name: str, root: Path) -> tuple[tuple[str, ...], Images, Images]:
    """Return class names, training and test part from the first place under ``root`` that has them.

    Raises:
        DatasetError: no place has the complete data, and they cannot be downloaded.
    """
    spec = CIFAR[name]
    batches = root / spec.source.base_folder
    if batches.is_dir():
        with contextlib.suppress(RuntimeError):  # incomplete or damaged: try the other places
            return _from_batches(spec, root)
    folders = (root / f"{name}-jpeg", root / name, root)
    for folder in folders:
        if (folder / "train").is_dir() or (folder / "test").is_dir():
            return _from_folders(spec, folder, cached=root / cache.FOLDER / f"{name}.pt")
    try:
        download_and_extract(spec.source.url, root, filename=spec.source.filename, md5=spec.source.tgz_md5)
        return _from_batches(spec, root)
    except (OSError, RuntimeError, HTTPException) as error:
        raise DatasetError(
            f"{spec.title} is not in {root.absolute()}. "
            f"Looked for torchvision's {batches.name} "
            f"({'incomplete or damaged' if batches.is_dir() else 'absent'}), "
            f"then for train/ and test/, each with a folder of images per class, in "
            f"{', '.join(str(folder.absolute()) for folder in folders)}. The download failed: {error}. "
            f"Give the folder that holds one of these with --data or the environment variable PROBATTN_DATA, "
            f"or run once with a network."
        ) from error


def _from_batches(spec: CifarSpec, root: Path) -> tuple[tuple[str, ...], Images, Images]:
    """Read torchvision's files, which are pickles; torchvision unpickles only files whose MD5 sum it has checked.

    Raises:
        RuntimeError: a file is missing or has a wrong MD5 sum.
    """
    train, test = (spec.source(root, train=train) for train in (True, False))
    return tuple(train.classes), _to_images(train.data, train.targets), _to_images(test.data, test.targets)


def _to_images(pixels: np.ndarray, labels: Sequence[int]) -> Images:
    return Images(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels))


def _from_folders(spec: CifarSpec, folder: Path, *, cached: Path) -> tuple[tuple[str, ...], Images, Images]:
    parts = {part: _list_classes(folder / part) for part in ("train", "test")}
    _check_complete(spec, folder, **parts)

    def decode() -> list[tuple[torch.Tensor, torch.Tensor]]:
        decoded = [_decode(folder / part, classes) for part, classes in parts.items()]
        return [(images.images, images.labels) for images in decoded]

    train, test = cache.read_or_compute(cached, stamp=_stamp(folder, parts), compute=decode)
    return tuple(parts["train"]), Images(*train), Images(*test)


def _list_classes(folder: Path) -> dict[str, list[str]]:
    """Return the names of the images in each class's folder, both sorted, without hidden files and folders."""
    if not folder.is_dir():
        return {}
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return {name: sorted(filter(is_image, os.listdir(folder / name))) for name in names}


def _check_complete(spec: CifarSpec, folder: Path, *, train: Files, test: Files) -> None:
    problems = []
    for part, classes, expected in (("train", train, spec.num_train), ("test", test, spec.num_test)):
        each = expected // spec.num_classes
        uneven = [f"{name} {len(files):,}" for name, files in classes.items() if len(files) != each]
        if uneven or len(classes) != spec.num_classes:
            found = sum(map(len, classes.values()))
            problems.append(
                f"{part}/ holds {found:,} images in {len(classes)} classes, "
                f"expected {expected:,} in {spec.num_classes}, {each:,} per class"
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


def _stamp(folder: Path, parts: Mapping[str, Files]) -> dict[str, str | int]:
    """Return the state of ``folder`` that a cache of it must match."""
    folders = [folder / part / name for part, classes in parts.items() for name in (".", *classes)]
    return {
        "folder": folder.name,
        "files": sum(len(files) for classes in parts.values() for files in classes.values()),
        "modified_ns": max(path.stat().st_mtime_ns for path in folders),
    }


def _decode(folder: Path, classes: Files) -> Images:
    """Decode all images of one part, class by class; the threads hide the latency of opening many small files."""
    with ThreadPoolExecutor(4) as pool:
        pixels = list(
            pool.map(lambda name: np.stack([_pixels(folder / name / file) for file in classes[name]]), classes)
        )
    labels = np.repeat(np.arange(len(pixels)), [len(images) for images in pixels])
    return _to_images(np.concatenate(pixels), labels)


def _pixels(path: Path) -> np.ndarray:
    """Return the pixels of an image file, uint8 (32, 32, 3)."""
    with open_image(path) as image:
        if image.mode != "RGB" or image.size != (32, 32):
            found = f"{image.mode} {image.width}×{image.height}"
            raise DatasetError(f"{path.absolute()} is {found}, expected RGB 32×32")
        image.load()
        return np.asarray(image)
