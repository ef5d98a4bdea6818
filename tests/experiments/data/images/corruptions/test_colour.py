import numpy as np
import pytest
from PIL import Image

from probattn.experiments.data.images.corruptions.colour import luma, paint


def test_luma_is_pillows():
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    ours = luma(pixels.transpose(2, 0, 1)[None].astype(np.float32))[0, 0]
    assert np.abs(ours - np.asarray(Image.fromarray(pixels).convert("L"))).max() <= 0.51


def test_grey_stays_itself_and_paint_becomes_its_luma():
    grey = np.random.default_rng(0).random((2, 1, 4, 4)).astype(np.float32)
    assert luma(grey) is grey
    colour = (0.2, 0.4, 0.9)
    assert paint(colour, grey).item() == pytest.approx(0.299 * 0.2 + 0.587 * 0.4 + 0.114 * 0.9)
    assert paint(colour, grey.repeat(3, axis=1)).ravel().tolist() == pytest.approx(colour)
