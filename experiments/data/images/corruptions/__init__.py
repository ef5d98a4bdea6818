"""The 19 corruptions of CIFAR-C, generated for images of any size.

CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and
perturbations", 2019) are the test images of CIFAR under 15 corruptions, and 4 more, at five severities. They are
generated with the severities of those files, which are milder than ImageNet-C's. Every corruption is a function
`(images, rng, *parameters)` of float32 images (n, C, H, W) in [0, 1] with 1 or 3 channels; it returns the same shape,
with values that may lie outside [0, 1], which `corrupt` clips.

Lengths are in pixels of a 32×32 image. On a larger image they scale with its shorter side; a smaller one is enlarged to
at least 32 pixels, each pixel a block, and averaged back. So at 32×32 they are CIFAR-C's, and 8×8 digits, which are
counts in the 4×4 blocks of 32×32 bitmaps, are blurred as much relative to their size. Overlays (fog, frost, snow,
splashes) are drawn at 32×32 and resized. Noise of each pixel, pixelation and JPEG do not scale.
"""

from probattn.experiments.data.images.corruptions.registry import (
    CATEGORIES,
    CORRUPTIONS,
    EXTRA,
    STANDARD,
    Corruption,
    corrupt,
)

__all__ = ["CATEGORIES", "CORRUPTIONS", "EXTRA", "STANDARD", "Corruption", "corrupt"]
