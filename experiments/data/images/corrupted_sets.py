"""Corrupted test sets (distribution shift): CIFAR-C's own files, downloaded if possible, else generated corruptions."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from probattn.experiments.data.download import check_folder, download_and_extract, is_reachable
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.cifar import CIFAR, CifarSpec
from probattn.experiments.data.images.corruptions import CORRUPTIONS, STANDARD, corrupt
from probattn.experiments.data.images.corruptions.registry import check_corruption
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.root import data_root
from probattn.experiments.data.sealed_files import digest
from probattn.experiments.data.splits import stratified_order

SEVERITIES = (1, 2, 3, 4, 5)
LIBRARIES = ("numpy", "scipy", "pillow", "torch")
"""Libraries that corruptions are computed with."""


@dataclass(frozen=True, eq=False)
class CorruptedSets:
    """A data set's test images under each of ``corruptions`` at each of ``severities``.

    Iterating yields every pair (corruption, severity), one corruption after the other; images are read or generated
    by :meth:`images` only.

    Attributes:
        source: a description of their origin for reports.
    """

    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    source: str
    _read: Callable[[str, int], Images] = field(repr=False)
    _digest: Callable[[str, int], str] = field(repr=False)

    def images(self, corruption: str, severity: int) -> Images:
        """Return the labelled images under one corruption; always the same ones in the same order.

        Raises:
            ValueError: if the pair is not one of these sets.
        """
        self._check(corruption, severity)
        return self._read(corruption, severity)

    def digest(self, corruption: str, severity: int) -> str:
        """Return a digest that changes with the images under one corruption, which are not generated for it.

        Official files are digested themselves; for generated images, what they are generated from.

        Raises:
            ValueError: if the pair is not one of these sets.
        """
        self._check(corruption, severity)
        return self._digest(corruption, severity)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return itertools.product(self.corruptions, self.severities)

    def _check(self, corruption: str, severity: int) -> None:
        if corruption not in self.corruptions or severity not in self.severities:
            raise ValueError(
                f"no set {corruption!r} of severity {severity!r}: there is {', '.join(self.corruptions)} "
                f"of severity {', '.join(map(str, self.severities))}"
            )


def corrupted_sets(
    dataset_name: str,
    test: Images,
    *,
    root: str | os.PathLike[str] | None = None,
    corruptions: Sequence[str] = STANDARD,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
) -> CorruptedSets:
    """Find or prepare a data set's corrupted test sets.

    For CIFAR the official files in the folder ``<root>/CIFAR-10-C`` (or ``CIFAR-100-C``) are used. If it is missing,
    pytorch-ood's archive is unpacked or downloaded (2.9 GB) there, if pytorch-ood is installed and the server answers.
    Their content is checked here, before any long computation. They hold the whole test set: if ``test`` is a smaller
    part of it, as many of their images are used, stratified by class and the same for every corruption, but not those
    of ``test``, whose positions in the files are unknown. Otherwise ``test`` is corrupted, and ``source`` says why.

    Args:
        dataset_name: a name of :func:`probattn.experiments.data.images.datasets.load`.
        test: the test images of a run.
        root: root folder of the data sets; default: ``$PROBATTN_DATA``, else ``data``.
        corruptions: keys of :data:`probattn.experiments.data.images.corruptions.CORRUPTIONS`.
        severities: 1 to 5.
        seed: seed of generated corruptions and of the part of official files.

    Raises:
        ValueError: no corruption or severity, an unknown one, or images that are neither grey nor RGB.
        DatasetError: official files are missing, damaged or have the wrong content.
    """
    if not corruptions or not severities:
        raise ValueError("give at least one corruption and one severity")
    for name, severity in itertools.product(corruptions, severities):
        check_corruption(name, severity)
    corruptions, severities = tuple(dict.fromkeys(corruptions)), tuple(dict.fromkeys(severities))
    missing = ""
    if dataset_name in CIFAR:
        folder = data_root(root) / f"{CIFAR[dataset_name].title}-C"
        missing = _download(folder)
        if not missing:
            source, read = _official(folder, CIFAR[dataset_name], corruptions, limit=len(test), seed=seed)
            return CorruptedSets(corruptions, severities, source, read, lambda name, level: read(name, level).digest)

    def generate(name: str, severity: int) -> Images:
        return Images(corrupt(test.images, name, severity, seed=seed), test.labels)

    def origin(name: str, severity: int) -> str:
        options = {"name": name, "parameters": CORRUPTIONS[name].severities[severity - 1], "seed": seed}
        return digest({"images": test.digest, "versions": {each: version(each) for each in LIBRARIES}, **options})

    corrupt(test.images[:0], corruptions[0], severities[0])  # raises an error if they are neither grey nor RGB
    source = f"generated from {len(test):,} test images with CIFAR-C's severities (frost without its photographs)"
    return CorruptedSets(corruptions, severities, source + missing, generate, origin)


def _download(folder: Path) -> str:
    """Download and unpack the official files if their folder is missing; return why they are still missing, or ""."""
    if folder.is_dir():
        return ""
    absent = f"; there are no official files of {folder.name}: "
    try:
        from pytorch_ood.dataset.img import CIFAR10C, CIFAR100C
    except ImportError:
        return f"{absent}pip install 'probattn[ood]' to download them"
    official = {"CIFAR-10-C": CIFAR10C, "CIFAR-100-C": CIFAR100C}[folder.name]
    try:
        check_folder(folder.parent)
        if not (folder.parent / official.filename).is_file() and not is_reachable(official.url):
            return f"{absent}{official.url} is out of reach"
        download_and_extract(official.url, folder.parent, filename=official.filename, md5=official.md5hash)
    except FileNotFoundError:
        return f"{absent}the folder of the data sets is missing"
    except (OSError, RuntimeError, HTTPException):
        return f"{absent}{official.filename} is damaged, or its download failed"
    return "" if folder.is_dir() else f"{absent}{official.filename} does not hold them"


def _official(
    folder: Path, spec: CifarSpec, corruptions: Sequence[str], *, limit: int, seed: int
) -> tuple[str, Callable[[str, int], Images]]:
    """Check the official files; return a description of their origin and a function that reads one set."""
    missing = [f"{name}.npy" for name in (*corruptions, "labels") if not (folder / f"{name}.npy").is_file()]
    if missing:
        raise DatasetError(
            f"{folder} lacks {len(missing)} of {len(corruptions) + 1} files: {', '.join(missing)}. Unpack the whole "
            f"archive of {folder.name} there, or move the folder away to have the corruptions generated."
        )
    whole = spec.num_test
    labels = _labels(folder / "labels.npy", spec)
    pixels = {name: _memory_map(folder / f"{name}.npy", (5 * whole, 32, 32, 3), np.uint8) for name in corruptions}
    chosen = torch.arange(whole)
    if limit < whole:
        order = stratified_order(labels, generator=torch.Generator().manual_seed(seed))
        chosen = order[:limit].sort().values

    def read(name: str, severity: int) -> Images:
        part = pixels[name][(severity - 1) * whole : severity * whole][chosen.numpy()]
        return Images(torch.from_numpy(part).permute(0, 3, 1, 2).contiguous(), labels[chosen])

    return f"official files of {folder.name}, {len(chosen):,} of {whole:,} images", read


def _labels(path: Path, spec: CifarSpec) -> Tensor:
    """Return the labels of one severity, int64 (num_test,)."""
    blocks = _memory_map(path, (5 * spec.num_test,), np.integer).reshape(5, -1)  # type: ignore[type-abstract]
    found = np.unique(blocks)
    if not np.array_equal(found, np.arange(spec.num_classes)):
        raise DatasetError(
            f"{path} holds {len(found)} different labels from {found.min()} to {found.max()}, but {spec.title} has "
            f"each of 0 to {spec.num_classes - 1}: are these the labels of another data set? {_remedy(path)}"
        )
    if (blocks != blocks[0]).any():
        raise DatasetError(f"{path}: the labels of the five severities differ, they should be equal. {_remedy(path)}")
    return torch.from_numpy(blocks[0].astype(np.int64))


def _memory_map(path: Path, shape: tuple[int, ...], kind: type[np.integer]) -> np.ndarray:
    """Map an array of this shape and ``kind`` of dtype into memory, without reading it."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a damaged header raises any error of Python's parser, such as TokenError
        raise DatasetError(f"{path} is damaged or no .npy file: {error}. {_remedy(path)}") from error
    if not np.issubdtype(array.dtype, kind) or array.shape != shape:
        raise DatasetError(
            f"{path} holds {array.dtype} {array.shape}, expected {kind.__name__} {shape}. {_remedy(path)}"
        )
    return array


def _remedy(path: Path) -> str:
    return f"Download {path.name} of {path.parent.name} again."
