"""Corrupted test images (distribution shift): CIFAR-C's own files where they are present, else generated here.

CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and
perturbations", 2019) are the test images of CIFAR under 15 corruptions, and 4 more, at five severities. All of them but
spatter are generated for images of any size, with the severities of those files, which are milder than ImageNet-C's.
They are ours, not the files' pixels: frost is drawn without the photographs of the original, and the random draws
differ.

Every corruption is a function `(images, rng, *parameters)` of float32 images (n, C, H, W) in [0, 1] with 1 or 3
channels. It returns the same shape, with values that may lie outside [0, 1], which `corrupt` clips.

Lengths are in pixels of a 32×32 image. On a larger image they scale with its shorter side. For blurs and the elastic
transform, a smaller one is enlarged to at least 32 pixels, each pixel a block, and averaged back. So at 32×32 they are
CIFAR-C's, and 8×8 digits, which are counts in the 4×4 blocks of 32×32 bitmaps, are blurred as much relative to their
size. Overlays (fog, frost, snow) are drawn at 32×32 and resized. Noise of each pixel, pixelation and JPEG do
not scale.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch
import yaml
from torch import Tensor

from probattn.experiments.data.dataset import digest
from probattn.experiments.data.errors import DatasetError, unknown_name
from probattn.experiments.data.images import blurs, overlays, pixelwise
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.data.images.known_sets import CIFAR
from probattn.experiments.data.root import Root, data_root

SEVERITIES = (1, 2, 3, 4, 5)
_FUNCTIONS = vars(blurs) | vars(overlays) | vars(pixelwise)
_BLOCK = 1000  # images per generator: bounds the memory; later images change no earlier block


class Corruption(NamedTuple):
    """Category, function, and the parameters of each severity."""

    category: str
    function: Callable[..., np.ndarray]
    severities: Sequence[Sequence[float]]


# Corruptions that are generated, by name: the standard ones, then the extra ones.
CORRUPTIONS = {
    name: Corruption(category, _FUNCTIONS[name], rows)
    for name, (category, *rows) in yaml.safe_load((files(__package__) / "corruptions.yaml").read_text()).items()
}
STANDARD = tuple(CORRUPTIONS)[:15]
OFFICIAL = (*CORRUPTIONS, "spatter")  # those of CIFAR-C's files


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
        name: a data set of :func:`probattn.experiments.data.images.known_sets.load`.
        test: the test images of a run.
        root: root folder of the data sets; default: ``$PROBATTN_DATA``, else ``data``.
        corruptions: names in :data:`OFFICIAL`, or in :data:`CORRUPTIONS` without official files.
        severities: 1 to 5.

    Raises:
        ValueError: an unknown corruption or severity.
        DatasetError: official files are missing, damaged or have the wrong content.
    """
    for corruption, severity in itertools.product(corruptions, severities):
        _check(corruption, severity, OFFICIAL)
    folder = data_root(root) / f"{CIFAR[name][0]}-C" if name in CIFAR else None
    if folder and folder.is_dir():
        return _official(folder, test, corruptions)
    if missing := set(corruptions) - CORRUPTIONS.keys():
        place = f"is not in {folder.absolute()}" if folder else "is one of CIFAR's files only"
        raise DatasetError(f"{missing.pop()} cannot be generated, and {place}: leave it out of the corruptions")
    return CorruptedSets(
        f"generated from {len(test):,} test images by probattn with CIFAR-C's severities; frost without photographs",
        lambda name, severity: Images(corrupt(test.images, name, severity), test.labels),
        lambda name, severity: digest(test.digest, name, CORRUPTIONS[name].severities[severity - 1]),
    )


def _official(folder: Path, test: Images, corruptions: Sequence[str]) -> CorruptedSets:
    """Return the sets of official files, whose content is checked before a long computation."""
    number = len(test)
    try:
        arrays = {name: np.lib.format.open_memmap(folder / f"{name}.npy", "r") for name in (*corruptions, "labels")}
    except Exception as error:  # a damaged header raises any error of Python's parser, such as TokenError
        raise DatasetError(f"cannot read {folder.absolute()}: {error}; unpack {folder.name} again") from error
    labels = torch.tensor(arrays.pop("labels")[:number], dtype=torch.int64)
    shapes = {array.shape for array in arrays.values()}
    if shapes != {(5 * number, 32, 32, 3)} or not torch.equal(labels.sort().values, test.labels.sort().values):
        raise DatasetError(f"{folder.absolute()} does not hold {folder.name}: images {shapes}; unpack it again")

    def images(name: str, severity: int) -> Images:
        part = torch.tensor(arrays[name][(severity - 1) * number : severity * number])
        return Images(part.permute(0, 3, 1, 2).contiguous(), labels)

    return CorruptedSets(f"official files of {folder.name}", images, lambda *pair: images(*pair).digest)


def corrupt(images: Tensor, name: str, severity: int, *, seed: int = 0) -> Tensor:
    """Corrupt every image, with randomness that depends on its position in the data set.

    The same name, severity and seed return the same images; the first 1000, 2000, … do not depend on later ones.

    Args:
        images: uint8 (n, C, H, W) with 1 or 3 channels.
        name: a key of :data:`CORRUPTIONS`.
        severity: 1 to 5.
        seed: seed of all randomness; not negative.

    Returns:
        uint8 images of the same shape and device. Values are truncated to integer levels, as in CIFAR-C.

    Raises:
        ValueError: an unknown name or severity.
    """
    _check(name, severity, CORRUPTIONS)
    blocks = []
    for number, block in enumerate(images.cpu().split(_BLOCK)):
        rng = np.random.default_rng([seed, crc32(name.encode()), severity, number])
        corrupted = _corrupt(block.numpy().astype(np.float32) / 255, CORRUPTIONS[name], severity, rng)
        # The offset keeps integer levels after rounding in float32.
        blocks.append(torch.from_numpy((255 * corrupted.clip(0, 1) + 1e-3).astype(np.uint8)))
    return torch.cat(blocks).to(images.device)


def _check(name: str, severity: int, known: Iterable[str]) -> None:
    """Raise ValueError unless `name` is a known corruption and `severity` is in 1..5."""
    if name not in known:
        raise ValueError(unknown_name("corruption", name, known, listing=f"known: {', '.join(known)}"))
    if severity not in SEVERITIES:
        raise ValueError(f"severity must be an integer from 1 to 5, got {severity!r}")


def _corrupt(images: np.ndarray, corruption: Corruption, severity: int, rng: np.random.Generator) -> np.ndarray:
    parameters = corruption.severities[severity - 1]
    if corruption.category != "blur" and corruption.function != blurs.elastic_transform:
        return corruption.function(images, rng, *parameters)
    n, channels, height, width = images.shape
    block = math.ceil(blurs.SIDE / min(height, width))
    large = corruption.function(images.repeat(block, axis=-2).repeat(block, axis=-1), rng, *parameters)
    return large.reshape(n, channels, height, block, width, block).mean(axis=(3, 5))
