"""Registry of corruptions by name, with CIFAR-C's severities."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from probattn.experiments.data.images.corruptions import blur, digital, noise, weather
from probattn.experiments.data.images.corruptions.spatter import spatter

CATEGORIES = ("noise", "blur", "weather", "digital")


@dataclass(frozen=True)
class Corruption:
    """A corruption function and its parameters at severities 1 to 5.

    Attributes:
        category: one of :data:`CATEGORIES`.
        function: `(images, rng, *parameters)` of float32 images (n, C, H, W) in [0, 1]; returns images of that shape.
        severities: five tuples of parameters, in the order of the arguments.
    """

    category: str
    function: Callable[..., np.ndarray]
    severities: tuple[tuple[float, ...], ...]


def _one_parameter(category: str, function: Callable[..., np.ndarray], *values: float) -> Corruption:
    return Corruption(category, function, tuple((value,) for value in values))


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": _one_parameter("noise", noise.gaussian_noise, 0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": _one_parameter("noise", noise.shot_noise, 500, 250, 100, 75, 50),
    "impulse_noise": _one_parameter("noise", noise.impulse_noise, 0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": Corruption("blur", blur.defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": Corruption(
        "blur", blur.glass_blur, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))
    ),
    "motion_blur": Corruption("blur", blur.motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": _one_parameter("blur", blur.zoom_blur, 1.06, 1.11, 1.16, 1.21, 1.26),
    "snow": Corruption(
        "weather",
        weather.snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": Corruption("weather", weather.frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": Corruption("weather", weather.fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": _one_parameter("weather", weather.brightness, 0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": _one_parameter("digital", digital.contrast, 0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": Corruption(
        "digital",
        digital.elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": _one_parameter("digital", digital.pixelate, 0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": _one_parameter("digital", digital.jpeg_compression, 80, 65, 58, 50, 40),
    "speckle_noise": _one_parameter("noise", noise.speckle_noise, 0.06, 0.1, 0.12, 0.16, 0.2),
    "gaussian_blur": _one_parameter("blur", blur.gaussian_blur, 0.4, 0.6, 0.7, 0.8, 1),
    "spatter": Corruption(
        "weather",
        spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
    ),
    "saturate": Corruption("digital", digital.saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
}
"""All corruptions in CIFAR-C's order: the 15 that papers report, then one more of each category."""

STANDARD = tuple(CORRUPTIONS)[:15]
EXTRA = tuple(CORRUPTIONS)[15:]

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
        raise ValueError(
            f"images must be uint8 (n, C, H, W) with 1 or 3 channels, got {images.dtype} {tuple(images.shape)}"
        )
    corruption = CORRUPTIONS[name]
    out = torch.empty_like(images)
    for number, (block, target) in enumerate(zip(images.split(_BLOCK), out.split(_BLOCK), strict=True)):
        if len(block):
            rng = np.random.default_rng([seed, crc32(name.encode()), severity, number])
            values = corruption.function(
                block.cpu().numpy().astype(np.float32) / 255, rng, *corruption.severities[severity - 1]
            )
            # The offset keeps integer levels after rounding in float32.
            target.copy_(torch.from_numpy((255 * values.clip(0, 1) + 1e-3).astype(np.uint8)))
    return out


def check_corruption(name: str, severity: int) -> None:
    """Raise ValueError unless `name` is a corruption and `severity` is in 1..5."""
    if name not in CORRUPTIONS:
        near = difflib.get_close_matches(name, CORRUPTIONS, n=3) or list(CORRUPTIONS)
        raise ValueError(f"unknown corruption {name!r}: choose one of {', '.join(near)}")
    if severity not in range(1, 6):
        raise ValueError(f"severity must be an integer from 1 to 5, got {severity!r}")
