"""Colour on RGB or grey images; a grey image is treated as three equal channels, and the result as their luma."""

import numpy as np

LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""Weights of red, green and blue in the luma of Rec. 601, which JPEG, OpenCV and Pillow use."""


def luma(images: np.ndarray) -> np.ndarray:
    """Return the luma (n, 1, H, W) of images (n, C, H, W) with 1 or 3 channels."""
    return images if images.shape[1] == 1 else np.tensordot(images, LUMA, axes=(1, 0))[:, None]


def paint(colour: tuple[float, float, float], images: np.ndarray) -> np.ndarray:
    """Return a colour as (C, 1, 1) for the channels of `images`; its luma for grey images."""
    values = np.array(colour, dtype=np.float32)[:, None, None]
    return values if images.shape[1] == 3 else luma(values[None])[0]
