"""Corrupted test images (distribution shift): CIFAR-C's own files where they are present, else
generated here.

CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, "Benchmarking neural network robustness to
common corruptions and perturbations", 2019) are the test images of CIFAR under 15 corruptions, and
4 more, at five severities. The 15 are generated for images of any size, with the severities of
those files, which are milder than ImageNet-C's. They are ours, not the files' pixels: frost is
drawn without the photographs of the original, and the random draws differ.

Every corruption is a function `(images, rng, *parameters)` of float32 images (n, C, H, W) in [0, 1]
with 1 or 3 channels. It returns the same shape, with values that may lie outside [0, 1], which
`corrupt` clips.

Lengths are in pixels of a 32×32 image. On a larger image they scale with its shorter side. For
blurs and the elastic transform, a smaller one is enlarged to at least 32 pixels, each pixel a
block, and averaged back. So at 32×32 they are CIFAR-C's, and 8×8 digits, which are counts in the
4×4 blocks of 32×32 bitmaps, are blurred as much relative to their size. Overlays (fog, frost, snow)
are drawn at 32×32 and resized. Noise of each pixel, pixelation and JPEG do not scale.
"""

import math
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
import yaml
from torch import Tensor

from probattn.experiments.data.dataset import Root, data_root
from probattn.experiments.data.errors import DatasetError, unknown_name
from probattn.experiments.data.images import blurs, pixelwise
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.data.images.known_sets import CIFAR

SEVERITIES = (1, 2, 3, 4, 5)
# Parameters of each severity, by the name of the corruption.
PARAMETERS: dict[str, list[list[float]]] = yaml.safe_load(
    (files(__package__) / "corruptions.yaml").read_text()
)
STANDARD = tuple(PARAMETERS)
# Those that change brightness or contrast of whole images, which a network of standardised images
# hardly notices.
PHOTOMETRIC = ("frost", "fog", "brightness", "contrast", "saturate")
ALL = (
    *STANDARD,
    "speckle_noise",
    "gaussian_blur",
    "spatter",
    "saturate",
)  # those of CIFAR-C's files
_FUNCTIONS = vars(blurs) | vars(pixelwise)
_BLOCK = 1000  # images per generator: bounds the memory; later images change no earlier block


def corrupted_sets(
    name: str,
    test: Images,
    *,
    root: Root,
    corruptions: Sequence[str],
    severities: Sequence[int] = SEVERITIES,
) -> tuple[str, Callable[[str, int], Images]]:
    """Find or prepare a data set's corrupted test sets.

    For CIFAR the official files in the folder ``<root>/CIFAR-10-C`` (or ``CIFAR-100-C``) are used,
    if it is there. Otherwise ``test`` is corrupted by our own program.

    Args:
        name: a data set of :func:`probattn.experiments.data.images.known_sets.load`.
        test: the test images of a run.
        root: root folder of the data sets; default: ``$PROBATTN_DATA``, else ``data``.
        corruptions: names in :data:`ALL`, or in :data:`STANDARD` without official files.
        severities: 1 to 5.

    Returns:
        Where the images are from, in words; and a function of a corruption and a severity, which
        returns the images, always the same ones in the same order.

    Raises:
        ValueError: an unknown corruption or severity.
        DatasetError: official files are missing, damaged or have the wrong content.
    """
    if unknown := [corruption for corruption in corruptions if corruption not in ALL]:
        raise ValueError(
            unknown_name("corruption", unknown[0], ALL, listing=f"known: {', '.join(ALL)}")
        )
    if not set(severities) <= set(SEVERITIES):
        raise ValueError(
            f"severities are integers from 1 to 5, got {', '.join(map(str, severities))}"
        )
    folder = data_root(root) / f"{CIFAR[name][0] if name in CIFAR else 'CIFAR'}-C"
    if name in CIFAR and folder.is_dir():
        return f"official files of {folder.name}", _official(folder, test, corruptions)
    if extra := [corruption for corruption in corruptions if corruption not in STANDARD]:
        raise DatasetError(
            f"{extra[0]} needs the files of CIFAR-C in {folder.absolute()}: unpack them"
        )
    source = (
        f"generated here from {len(test):,} test images with CIFAR-C's severities; frost without "
        "photographs"
    )
    return source, lambda name, severity: Images(corrupt(test.images, name, severity), test.labels)


def _official(
    folder: Path, test: Images, corruptions: Sequence[str]
) -> Callable[[str, int], Images]:
    """Return the sets of official files, whose content is checked before a long computation."""
    number = len(test)
    try:
        arrays = {
            name: np.lib.format.open_memmap(folder / f"{name}.npy", "r")
            for name in (*corruptions, "labels")
        }
    except (
        Exception
    ) as error:  # a damaged header raises any error of Python's parser, such as TokenError
        raise DatasetError(
            f"cannot read {folder.absolute()}: {error}; unpack {folder.name} again"
        ) from error
    labels = torch.tensor(arrays.pop("labels")[:number], dtype=torch.int64)
    shapes = {array.shape for array in arrays.values()}
    if shapes != {(5 * number, 32, 32, 3)} or not torch.equal(
        labels.sort().values, test.labels.sort().values
    ):
        raise DatasetError(
            f"{folder.absolute()} does not hold {folder.name}: images {shapes}; unpack it again"
        )

    def images(name: str, severity: int) -> Images:
        pixels = torch.tensor(arrays[name][(severity - 1) * number : severity * number])
        return Images(pixels.permute(0, 3, 1, 2).contiguous(), labels)

    return images


def corrupt(images: Tensor, name: str, severity: int, *, seed: int = 0) -> Tensor:
    """Corrupt every image, with randomness that depends on its position in the data set.

    The same name, severity and seed return the same images; the first 1000, 2000, … do not depend
    on later ones.

    Args:
        images: uint8 (n, C, H, W) with 1 or 3 channels.
        name: one of :data:`STANDARD`.
        severity: 1 to 5.
        seed: seed of all randomness; not negative.

    Returns:
        uint8 images of the same shape and device. Values are truncated to integer levels, as in
        CIFAR-C.
    """
    blocks = []
    for number, block in enumerate(images.cpu().split(_BLOCK)):
        rng = np.random.default_rng([seed, crc32(name.encode()), severity, number])
        corrupted = _corrupt(block.numpy().astype(np.float32) / 255, name, severity, rng)
        # The offset keeps integer levels after rounding in float32.
        blocks.append(torch.from_numpy((255 * corrupted.clip(0, 1) + 1e-3).astype(np.uint8)))
    return torch.cat(blocks).to(images.device)


def _corrupt(images: np.ndarray, name: str, severity: int, rng: np.random.Generator) -> np.ndarray:
    parameters = PARAMETERS[name][severity - 1]
    if not hasattr(blurs, name):
        return _FUNCTIONS[name](images, rng, *parameters)
    n, channels, height, width = images.shape
    block = math.ceil(blurs.SIDE / min(height, width))
    large = _FUNCTIONS[name](images.repeat(block, axis=-2).repeat(block, axis=-1), rng, *parameters)
    return large.reshape(n, channels, height, block, width, block).mean(axis=(3, 5))
