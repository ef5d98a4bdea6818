"""Test images under distribution shift: CIFAR-C's own files where they are, else corruptions made here."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from probattn.experiments.data.images.cifar import CIFAR, Cifar
from probattn.experiments.data.images.corruptions import STANDARD, corrupt
from probattn.experiments.data.images.corruptions.registry import check
from probattn.experiments.data.images.datasets import data_root
from probattn.experiments.data.images.images import DatasetError, Images, stratified_order

SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True, eq=False)
class ShiftedSets:
    """A data set's test images under each of ``corruptions`` at each of ``severities``.

    Iterating gives every pair (corruption, severity), one corruption after the other; images are read or made only
    when they are asked for.

    Attributes:
        official: whether the images are CIFAR-C's own files.
        source: where they come from, in a phrase for a report.
    """

    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    official: bool
    source: str
    _read: Callable[[str, int], Images] = field(repr=False)

    def images(self, corruption: str, severity: int) -> Images:
        """The images under one corruption, with their labels; always the same ones in the same order.

        Raises:
            ValueError: if the pair is not one of these sets.
        """
        if corruption not in self.corruptions or severity not in self.severities:
            raise ValueError(
                f"no {corruption!r} of severity {severity!r} here: there is {', '.join(self.corruptions)} "
                f"of severity {', '.join(map(str, self.severities))}"
            )
        return self._read(corruption, severity)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return itertools.product(self.corruptions, self.severities)

    def __len__(self) -> int:
        return len(self.corruptions) * len(self.severities)


def shifted(
    dataset_name: str,
    test: Images,
    *,
    root: str | os.PathLike[str] | None = None,
    corruptions: Sequence[str] = STANDARD,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
) -> ShiftedSets:
    """Find, or else prepare to make, a data set's test images under distribution shift.

    For CIFAR the official files are taken where the folder ``<root>/CIFAR-10-C`` (or ``CIFAR-100-C``) exists; what
    they hold is checked here, before any long work. They hold the whole test set: where ``test`` is a smaller part of
    it, as many of their images are taken, stratified by class and the same for every corruption, though not those of
    ``test``, whose place in the files nobody knows. Otherwise ``test`` itself is corrupted.

    Args:
        dataset_name: as for :func:`probattn.experiments.data.images.datasets.load`.
        test: the images that a run is tested on.
        root: the data folder; default: ``$PROBATTN_DATA``, else ``data``.
        corruptions: keys of :data:`probattn.experiments.data.images.corruptions.CORRUPTIONS`.
        severities: of 1 to 5.
        seed: of the corruptions that are made here, and of the part taken of official files.

    Raises:
        ValueError: none or an unknown corruption or severity; images that are neither grey nor RGB.
        DatasetError: the folder of official files lacks some, or one of them is damaged or not what it should be.
    """
    if not corruptions or not severities:
        raise ValueError("give at least one corruption and one severity")
    for name, severity in itertools.product(corruptions, severities):
        check(name, severity)
    corruptions, severities = tuple(dict.fromkeys(corruptions)), tuple(dict.fromkeys(severities))
    if dataset_name in CIFAR:
        folder = data_root(root) / f"{CIFAR[dataset_name].title}-C"
        if folder.is_dir():
            source, read = _official(folder, CIFAR[dataset_name], corruptions, limit=len(test), seed=seed)
            return ShiftedSets(corruptions, severities, True, source, read)

    def make(name: str, severity: int) -> Images:
        return Images(corrupt(test.images, name, severity, seed=seed), test.labels)

    corrupt(test.images[:0], corruptions[0], severities[0])  # refuses what is neither grey nor RGB
    source = f"generated from {len(test):,} test images with CIFAR-C's severities (frost without its photographs)"
    return ShiftedSets(corruptions, severities, False, source, make)


def _official(
    folder: Path, spec: Cifar, corruptions: Sequence[str], *, limit: int, seed: int
) -> tuple[str, Callable[[str, int], Images]]:
    """Check the files; return where the images come from, and what reads them."""
    missing = [f"{name}.npy" for name in (*corruptions, "labels") if not (folder / f"{name}.npy").is_file()]
    if missing:
        raise DatasetError(
            f"{folder} lacks {len(missing)} of {len(corruptions) + 1} files: {', '.join(missing)}. Unpack the whole "
            f"archive of {folder.name} there, or move the folder away to have the corruptions made here."
        )
    whole = spec.num_test
    labels = _labels(folder / "labels.npy", spec)
    pixels = {name: _opened(folder / f"{name}.npy", (5 * whole, 32, 32, 3), np.uint8) for name in corruptions}
    chosen = torch.arange(whole)
    if limit < whole:
        order = stratified_order(labels, generator=torch.Generator().manual_seed(seed))
        chosen = order[:limit].sort().values

    def read(name: str, severity: int) -> Images:
        part = pixels[name][(severity - 1) * whole : severity * whole][chosen.numpy()]
        return Images(torch.from_numpy(part).permute(0, 3, 1, 2).contiguous(), labels[chosen])

    return f"official files of {folder.name}, {len(chosen):,} of {whole:,} images", read


def _labels(path: Path, spec: Cifar) -> Tensor:
    """Return the labels of one severity, int64 (num_test,)."""
    blocks = _opened(path, (5 * spec.num_test,), np.integer).reshape(5, -1)
    found = np.unique(blocks)
    if not np.array_equal(found, np.arange(spec.num_classes)):
        raise DatasetError(
            f"{path} holds {len(found)} different labels from {found.min()} to {found.max()}, but {spec.title} has "
            f"each of 0 to {spec.num_classes - 1}: are these the labels of another data set? {_again(path)}"
        )
    if (blocks != blocks[0]).any():
        raise DatasetError(f"{path}: the labels of the five severities differ, they should be equal. {_again(path)}")
    return torch.from_numpy(blocks[0].astype(np.int64))


def _opened(path: Path, shape: tuple[int, ...], kind: type[np.integer]) -> np.ndarray:
    """Map an array of a dtype of this `kind` into memory; it is read only where it is used."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a damaged header raises what Python's parser raises, TokenError for one
        raise DatasetError(f"{path} is damaged or no .npy file: {error}. {_again(path)}") from error
    if not np.issubdtype(array.dtype, kind) or array.shape != shape:
        raise DatasetError(
            f"{path} holds {array.dtype} {array.shape}, expected {kind.__name__} {shape}. {_again(path)}"
        )
    return array


def _again(path: Path) -> str:
    return f"Get {path.name} of {path.parent.name} again."
