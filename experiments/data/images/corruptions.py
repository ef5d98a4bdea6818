"""The 19 corruptions of CIFAR-C, generated for images of any size.

CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and
perturbations", 2019) are the test images of CIFAR under 15 corruptions, and 4 more, at five severities. The images here
are generated with the severities of those files, which are milder than ImageNet-C's. They are ours, not the files'
pixels: frost is drawn without the photographs of the original, and the random draws differ.

Every corruption is a function `(images, rng, *parameters)` of float32 images (n, C, H, W) in [0, 1] with 1 or 3
channels. It returns the same shape, with values that may lie outside [0, 1], which `corrupt` clips.

Lengths are in pixels of a 32×32 image. On a larger image they scale with its shorter side. For blurs and the elastic
transform, a smaller one is enlarged to at least 32 pixels, each pixel a block, and averaged back. So at 32×32 they are
CIFAR-C's, and 8×8 digits, which are counts in the 4×4 blocks of 32×32 bitmaps, are blurred as much relative to their
size. Overlays (fog, frost, snow, splashes) are drawn at 32×32 and resized. Noise of each pixel, pixelation and JPEG do
not scale.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from zlib import crc32

import numpy as np
import torch
import yaml
from torch import Tensor

from probattn.experiments.data.images import blurs, overlays, pixelwise

SEVERITIES = (1, 2, 3, 4, 5)
_FUNCTIONS = vars(blurs) | vars(overlays) | vars(pixelwise)
_BLOCK = 1000  # images per generator: bounds the memory; later images change no earlier block


@dataclass(frozen=True)
class Corruption:
    """Category, function, and the parameters of each severity."""

    category: str
    function: Callable[..., np.ndarray]
    severities: Sequence[Sequence[float]]


# Corruptions by name: the standard ones, then the extra ones.
CORRUPTIONS = {
    name: Corruption(category, _FUNCTIONS[name], rows)
    for name, (category, *rows) in yaml.safe_load((files(__package__) / "corruptions.yaml").read_text()).items()
}
STANDARD = tuple(CORRUPTIONS)[:15]


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
        ValueError: an unknown name or severity, or images of another dtype or number of channels.
    """
    check_corruption(name, severity)
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        shape = tuple(images.shape)
        raise ValueError(f"images must be uint8 (n, C, H, W) with 1 or 3 channels, got {images.dtype} {shape}")
    blocks = []
    for number, block in enumerate(images.cpu().split(_BLOCK)):
        rng = np.random.default_rng([seed, crc32(name.encode()), severity, number])
        corrupted = _corrupt(block.numpy().astype(np.float32) / 255, CORRUPTIONS[name], severity, rng)
        # The offset keeps integer levels after rounding in float32.
        blocks.append(torch.from_numpy((255 * corrupted.clip(0, 1) + 1e-3).astype(np.uint8)))
    return torch.cat(blocks).to(images.device)


def check_corruption(name: str, severity: int) -> None:
    """Raise ValueError unless `name` is a corruption and `severity` is in 1..5."""
    if name not in CORRUPTIONS:
        near = get_close_matches(name, CORRUPTIONS, n=3) or CORRUPTIONS
        raise ValueError(f"unknown corruption {name!r}: choose one of {', '.join(near)}")
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
