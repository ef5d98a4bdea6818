"""Image data sets as uint8 tensors: handwritten digits, CIFAR-10 and CIFAR-100.

CIFAR is looked for under one root folder: the argument, else the environment variable ``PROBATTN_DATA``,
else ``data``. It may lie there as torchvision's own files, or as one folder of 32×32 RGB images a class,
``{cifar10-jpeg,cifar10,.}/{train,test}/<class>/*.{jpg,png}``, which is decoded once and cached as a tensor.
"""

import contextlib
import os
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.datasets import CIFAR10, CIFAR100


class DatasetError(RuntimeError):
    """A data set is missing, incomplete or damaged; the message says where and what to do."""


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images: ``images`` uint8 (n, C, H, W), ``labels`` int64 (n,).

    Raises:
        ValueError: if a tensor has another shape or dtype, or the lengths differ.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(f"images must be uint8 (n, C, H, W), got {_describe(self.images)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(f"labels must be int64 ({len(self.images)},), got {_describe(self.labels)}")

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor) -> Self:
        """The images at ``indices``, int64 (m,), in that order, as a copy."""
        return type(self)(self.images[indices], self.labels[indices])

    def to(self, device: torch.device | str) -> Self:
        """The same images on ``device``."""
        return type(self)(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A data set split in three, with what training needs to know about it.

    Attributes:
        name: as given to :func:`load`.
        classes: names, in the order of the labels.
        train, valid, test: disjoint parts.
        mean, std: per channel, of the training images scaled to 0..1.
        augment: whether training crops and flips at random: natural images yes, digits no.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    valid: Images
    test: Images
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: bool


class _Cifar(NamedTuple):
    title: str
    source: type[CIFAR10]
    num_classes: int
    num_train: int
    num_test: int


_CIFAR = {
    "cifar10": _Cifar("CIFAR-10", CIFAR10, 10, 50_000, 10_000),
    "cifar100": _Cifar("CIFAR-100", CIFAR100, 100, 50_000, 10_000),
}
_SUFFIXES = (".jpg", ".jpeg", ".png")

NAMES = ("digits", *_CIFAR)
"""The names :func:`load` knows."""


def load(
    name: str, *, root: str | os.PathLike[str] | None = None, seed: int = 0, limit: int | None = None
) -> ImageDataset:
    """Load a data set and cut off its validation part.

    ``digits`` (8×8, grey, from scikit-learn) is split 60/20/20. CIFAR keeps its own test part; one tenth of
    its training part becomes the validation part. Every cut is stratified by class.

    Args:
        name: one of :data:`NAMES`.
        root: folder to look for CIFAR in; default: ``$PROBATTN_DATA``, else ``data``. Decoded images are
            cached in ``<root>/.probattn-cache``, where that can be written. The cache is made anew when the
            number of files or the folders' newest modification time changes; remove it by hand after a
            change that leaves both, such as editing a file in place.
        seed: fixes the cuts, and nothing else.
        limit: keep at most this many training images, and of the validation and test images the same
            fraction, but one a class at least where there is one. A smaller limit keeps a subset of what a
            larger one keeps.

    Raises:
        ValueError: if ``name`` is unknown or ``limit`` is below 1.
        DatasetError: if the data are missing, incomplete or damaged. Nothing is ever deleted.
    """
    if name not in NAMES:
        raise ValueError(f"unknown data set {name!r}: choose one of {', '.join(NAMES)}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    generator = torch.Generator().manual_seed(seed)
    if name == "digits":
        classes, whole = _digits()
        fifth = round(len(whole) / 5)
        sizes = (len(whole) - 2 * fifth, fifth, fifth)
        train, valid, test = split(whole, sizes=sizes, generator=generator)
    else:
        folder = Path(root or os.environ.get("PROBATTN_DATA") or "data").expanduser()
        classes, whole, test = _cifar(name, folder)
        tenth = len(whole) // 10
        train, valid = split(whole, sizes=(len(whole) - tenth, tenth), generator=generator)
    if limit is not None:
        fraction = min(1.0, limit / len(train))
        rest = [max(len(classes), round(fraction * len(part))) for part in (valid, test)]
        train, valid, test = (
            split(part, sizes=(min(size, len(part)),), generator=generator)[0]
            for part, size in zip((train, valid, test), (limit, *rest), strict=True)
        )
    mean, std = channel_statistics(train.images)
    return ImageDataset(name, classes, train, valid, test, mean, std, augment=name in _CIFAR)


def stratified_order(labels: Tensor, *, generator: torch.Generator) -> Tensor:
    """A random order of the data, int64 (n,), of which every prefix holds the classes in proportion.

    Classes of equal size differ by at most one image in any prefix, and no class misses from a prefix as
    long as the number of classes, or longer.

    Args:
        labels: int64 (n,), not negative.
        generator: CPU generator; draws one permutation.
    """
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    classes, sizes = labels[order], labels.bincount()
    rank = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[classes]
    return order[(rank.double() / sizes[classes]).argsort(stable=True)]


def split(data: Images, *, sizes: Sequence[int], generator: torch.Generator) -> tuple[Images, ...]:
    """Draw disjoint stratified parts of the given sizes, each in the order of the data.

    Raises:
        ValueError: if there are fewer images than ``sizes`` ask for.
    """
    if sum(sizes) > len(data):
        raise ValueError(f"cannot draw {' + '.join(map(str, sizes))} of {len(data)} images")
    order = stratified_order(data.labels, generator=generator)[: sum(sizes)]
    return tuple(data.select(part.sort().values) for part in order.split(list(sizes)))


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and (population) standard deviation per channel of uint8 (n, C, H, W), scaled to 0..1."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    # Counting the 256 levels is exact, and spares a float copy of the data.
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in images.unbind(1)]).double()
    weights = counts / counts.sum(1, keepdim=True)
    mean = weights @ levels
    variance = (weights * (levels - mean[:, None]) ** 2).sum(1)
    return tuple(mean.tolist()), tuple(variance.sqrt().tolist())


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _digits() -> tuple[tuple[str, ...], Images]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DatasetError("the digits come with scikit-learn: pip install probattn[digits]") from error
    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)  # load_digits counts 0..16
    images = Images(torch.from_numpy(pixels)[:, None], torch.from_numpy(bunch.target).long())
    return tuple(map(str, bunch.target_names)), images


def _cifar(name: str, root: Path) -> tuple[tuple[str, ...], Images, Images]:
    """Class names, training and test part, from the first place under ``root`` that has them."""
    spec = _CIFAR[name]
    batches = root / spec.source.base_folder
    if batches.is_dir():
        with contextlib.suppress(RuntimeError):  # incomplete or damaged: go on looking
            return _from_torchvision(spec, root, download=False)
    folders = (root / f"{name}-jpeg", root / name, root)
    for folder in folders:
        if (folder / "train").is_dir() or (folder / "test").is_dir():
            return _from_folders(spec, folder, cache=root / ".probattn-cache" / f"{name}.pt")
    try:
        return _from_torchvision(spec, root, download=True)
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


def _from_torchvision(spec: _Cifar, root: Path, *, download: bool) -> tuple[tuple[str, ...], Images, Images]:
    train, test = (spec.source(root, train=part, download=download) for part in (True, False))
    return tuple(train.classes), *(_to_images(part.data, part.targets) for part in (train, test))


def _to_images(pixels: np.ndarray, labels: Sequence[int]) -> Images:
    """From ``pixels`` uint8 (n, H, W, C)."""
    return Images(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels))


def _from_folders(spec: _Cifar, folder: Path, *, cache: Path) -> tuple[tuple[str, ...], Images, Images]:
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
    spec: _Cifar, folder: Path, *, train: Mapping[str, Sequence[str]], test: Mapping[str, Sequence[str]]
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
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    content = {"stamp": stamp, "train": (train.images, train.labels), "test": (test.images, test.labels)}
    with contextlib.suppress(OSError, RuntimeError):  # torch.save reports a failing disk as RuntimeError
        path.parent.mkdir(exist_ok=True)
        try:
            torch.save(content, unfinished)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)


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
        with Image.open(path) as image:
            if image.mode != "RGB" or image.size != (32, 32):
                found = f"{image.mode} {image.width}×{image.height}"
                raise DatasetError(f"{path.absolute()} is {found}, expected RGB 32×32")
            image.load()
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:  # Pillow reports a broken PNG as SyntaxError
        raise DatasetError(f"cannot decode {path.absolute()}: {error}; put a sound copy there") from error
