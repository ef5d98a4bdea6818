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
from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from probattn.experiments.data.images import blurs, overlays, pixelwise


class Corruption(NamedTuple):
    """Category, function, and the parameters of each severity from 1 to 5."""

    category: str
    function: Callable[..., np.ndarray]
    severities: tuple[float | tuple[float, ...], ...]


_SNOW = (
    (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
)
_FROST = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
_ELASTIC = ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))
_WATER = ((0.62, 0.1, 0.7, 0.7, 0.5, 0), (0.65, 0.1, 0.8, 0.7, 0.5, 0), (0.65, 0.3, 1, 0.69, 0.5, 0))
_MUD = ((0.65, 0.1, 0.7, 0.69, 0.6, 1), (0.65, 0.1, 0.5, 0.68, 0.6, 1))
CORRUPTIONS = {
    "gaussian_noise": Corruption("noise", pixelwise.gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": Corruption("noise", pixelwise.shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": Corruption("noise", pixelwise.impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": Corruption("blur", blurs.defocus, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": Corruption("blur", blurs.glass, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "motion_blur": Corruption("blur", blurs.motion, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": Corruption("blur", blurs.zoom, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "snow": Corruption("weather", overlays.snow, _SNOW),
    "frost": Corruption("weather", overlays.frost, _FROST),
    "fog": Corruption("weather", overlays.fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": Corruption("weather", pixelwise.brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Corruption("digital", pixelwise.contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": Corruption("digital", blurs.elastic_transform, _ELASTIC),
    "pixelate": Corruption("digital", pixelwise.pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": Corruption("digital", pixelwise.jpeg_compression, (80, 65, 58, 50, 40)),
    "speckle_noise": Corruption("noise", pixelwise.speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    "gaussian_blur": Corruption("blur", blurs.gaussian, (0.4, 0.6, 0.7, 0.8, 1)),
    "spatter": Corruption("weather", overlays.spatter, _WATER + _MUD),
    "saturate": Corruption("digital", pixelwise.saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
}
"""Corruptions by name: the standard ones, then the extra ones."""
STANDARD, EXTRA = tuple(CORRUPTIONS)[:15], tuple(CORRUPTIONS)[15:]
CATEGORIES = ("noise", "blur", "weather", "digital")
SEVERITIES = (1, 2, 3, 4, 5)
_BLOCK = 1000  # images per generator: bounds the memory; later images change no earlier block


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
        corrupted = _corrupt(block.numpy().astype(np.float32) / 255, name, severity, rng)
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


def _corrupt(images: np.ndarray, name: str, severity: int, rng: np.random.Generator) -> np.ndarray:
    category, function, severities = CORRUPTIONS[name]
    parameters = severities[severity - 1]
    parameters = parameters if isinstance(parameters, tuple) else (parameters,)
    if category != "blur" and name != "elastic_transform":
        return function(images, rng, *parameters)
    n, channels, height, width = images.shape
    block = math.ceil(blurs.SIDE / min(height, width))
    large = function(images.repeat(block, axis=-2).repeat(block, axis=-1), rng, *parameters)
    return large.reshape(n, channels, height, block, width, block).mean(axis=(3, 5))
