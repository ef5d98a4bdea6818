"""The 19 corruptions of CIFAR-C, generated for images of any size.

CIFAR-10-C and CIFAR-100-C (Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and
perturbations", 2019) are the test images of CIFAR under 15 corruptions, and 4 more, of five severities. Here they are
generated with the severities that made those files, which are milder than ImageNet-C's. Every corruption is a function
`(images, rng, *parameters)` of float32 images (n, C, H, W) in [0, 1] with 1 or 3 channels; what it returns has the same
shape and may leave [0, 1], which `corrupt` clips.

Lengths in pixels count pixels of an image 32 high and wide. On a larger image they grow with its shorter side; a
smaller one is enlarged to 32 pixels at least, each pixel a block, and averaged back. So at 32×32 they are CIFAR-C's,
and 8×8 digits, which were counted in blocks of 4×4 of 32×32 bitmaps, are blurred as much for their size. What is drawn
on an image (fog, frost, snow, splashes) is drawn at 32×32 and resized. What has no length, such as the noise of each
pixel, and what acts on the pixels of a file, pixelation and JPEG, is used as it is.
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
