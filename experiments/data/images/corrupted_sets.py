"""Corrupted test sets (distribution shift): CIFAR-C's own files where they are present, else our corruptions."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from probattn.experiments.data.dataset import digest
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.cifar import CIFAR, CifarSpec
from probattn.experiments.data.images.corruptions import CORRUPTIONS, SEVERITIES, check_corruption, corrupt
from probattn.experiments.data.images.labelled_images import Images
from probattn.experiments.data.root import Root, data_root


class CorruptedSets(NamedTuple):
    """A data set's test images by corruption and severity, always the same ones in the same order.

    ``source`` says in words where the images are from. ``images`` and ``digest`` take a corruption and a severity. The
    digest changes with the images, which are not generated for it.
    """

    source: str
    images: Callable[[str, int], Images]
    digest: Callable[[str, int], str]


def corrupted_sets(
    name: str, test: Images, *, root: Root, corruptions: Sequence[str], severities: Sequence[int] = SEVERITIES
) -> CorruptedSets:
    """Find or prepare a data set's corrupted test sets.

    For CIFAR the official files in the folder ``<root>/CIFAR-10-C`` (or ``CIFAR-100-C``) are used, if it is there.
    Otherwise ``test`` is corrupted by our own program.

    Args:
        name: a data set of :func:`probattn.experiments.data.images.image_datasets.load`.
        test: the test images of a run.
        root: root folder of the data sets; default: ``$PROBATTN_DATA``, else ``data``.
        corruptions: keys of :data:`probattn.experiments.data.images.corruptions.CORRUPTIONS`.
        severities: 1 to 5.

    Raises:
        ValueError: an unknown corruption or severity.
        DatasetError: official files are missing, damaged or have the wrong content.
    """
    for corruption, severity in itertools.product(corruptions, severities):
        check_corruption(corruption, severity)
    folder = data_root(root) / f"{CIFAR[name].title}-C" if name in CIFAR else None
    if folder and folder.is_dir():
        return _official(folder, CIFAR[name], corruptions)
    return CorruptedSets(
        f"generated from {len(test):,} test images by probattn with CIFAR-C's severities; frost without photographs",
        lambda name, severity: Images(corrupt(test.images, name, severity), test.labels),
        lambda name, severity: digest(test.digest, name, CORRUPTIONS[name].severities[severity - 1]),
    )


def _official(folder: Path, spec: CifarSpec, corruptions: Sequence[str]) -> CorruptedSets:
    """Return the sets of official files, whose content is checked before a long computation."""
    number = spec.num_test
    try:
        arrays = {name: np.lib.format.open_memmap(folder / f"{name}.npy", "r") for name in (*corruptions, "labels")}
    except Exception as error:  # a damaged header raises any error of Python's parser, such as TokenError
        raise DatasetError(f"cannot read {folder.absolute()}: {error}; unpack {folder.name} again") from error
    labels = torch.tensor(arrays.pop("labels")[:number], dtype=torch.int64)
    shapes = {array.shape for array in arrays.values()}
    if shapes != {(5 * number, 32, 32, 3)} or labels.unique().tolist() != list(range(spec.num_classes)):
        raise DatasetError(f"{folder.absolute()} does not hold {folder.name}: images {shapes}; unpack it again")

    def images(name: str, severity: int) -> Images:
        part = torch.tensor(arrays[name][(severity - 1) * number : severity * number])
        return Images(part.permute(0, 3, 1, 2).contiguous(), labels)

    return CorruptedSets(f"official files of {folder.name}", images, lambda *pair: images(*pair).digest)
