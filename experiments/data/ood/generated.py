"""Images that are no digits and need no download: printed letters, and patches of scikit-learn's two photographs."""

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from probattn.experiments.data.images.images import DatasetError

LETTERS = "ACEFHKLMNPRUVWX"
"""Capitals that a reader tells from digits at 8×8 pixels: without B D G I J O Q S T Y Z."""
FONTS = ("Sans", "Sans-Bold", "Sans-BoldOblique", "Serif", "Serif-Bold", "SansMono-Bold")
"""Styles of DejaVu that come with matplotlib."""
COPIES = 4
PATCHES = 180
"""Patches of each photograph."""


def letters(*, size: int, seed: int) -> list[np.ndarray]:
    """360 printed capitals, white on black, uint8 (size, size), with the look of scikit-learn's digits.

    Those are bitmaps of 4·size a side, of which the dots in each 4×4 block were counted (Alpaydin & Kaynak, 1998); so
    are these. Each letter stands in six styles, four times: sheared, turned, stretched and shifted at random.
    """
    import matplotlib

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    generator = np.random.default_rng(seed)
    drawn = []
    for style in FONTS:
        font = ImageFont.truetype(folder / f"DejaVu{style}.ttf", 16 * size)
        for letter in LETTERS:
            glyph = _glyph(letter, font, stroke=size // 4)
            bitmaps = (_distort(glyph, side=4 * size, generator=generator) for _ in range(COPIES))
            drawn.extend(_count_dots(bitmap) for bitmap in bitmaps)
    return drawn


def patches(*, seed: int) -> list[np.ndarray]:
    """360 square patches of a temple and a flower at random places, 32 to 160 pixels wide, uint8 (h, h, 3).

    Raises:
        DatasetError: scikit-learn, with which the photographs come, is missing.
    """
    try:
        from sklearn.datasets import load_sample_image
    except ImportError as error:
        raise DatasetError("the photographs come with scikit-learn: pip install probattn[digits]") from error
    generator = np.random.default_rng(seed)
    cut = []
    for photograph in map(load_sample_image, ("china.jpg", "flower.jpg")):
        for side in generator.integers(32, 160, PATCHES, endpoint=True):
            top, left = (generator.integers(length - side) for length in photograph.shape[:2])
            cut.append(photograph[top : top + side, left : left + side])
    return cut


def _glyph(letter: str, font: ImageFont.FreeTypeFont, *, stroke: int) -> Image.Image:
    """The letter, white on black, cut at its edges; ``stroke`` pixels bolder on each side."""
    left, top, right, bottom = font.getbbox(letter, stroke_width=stroke)
    glyph = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(glyph).text((-left, -top), letter, fill=255, font=font, stroke_width=stroke)
    return glyph


def _distort(glyph: Image.Image, *, side: int, generator: np.random.Generator) -> np.ndarray:
    """The glyph as a bitmap, bool (side, side): about as high as that and, like handwriting, narrower."""
    shear, turn = generator.uniform(-0.2, 0.2), generator.uniform(-0.1, 0.1)
    down = generator.uniform(0.9, 1.05) * side / glyph.height
    across = min(generator.uniform(0.7, 0.9) * down, generator.uniform(0.65, 0.8) * side / glyph.width)
    middle = side * (0.5 + generator.uniform(-0.04, 0.04, 2))
    turned = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    forward = turned @ np.array([[1, shear], [0, 1]]) @ np.diag([across, down])
    back = np.linalg.inv(forward)  # Pillow asks where each pixel comes from
    offset = np.array(glyph.size) / 2 - back @ middle
    numbers = np.column_stack([back, offset]).ravel().tolist()
    bitmap = glyph.transform((side, side), Image.Transform.AFFINE, numbers, Image.Resampling.BILINEAR)
    return np.asarray(bitmap) > 127


def _count_dots(bitmap: np.ndarray) -> np.ndarray:
    """The share of dots in each 4×4 block, as uint8 (side / 4, side / 4)."""
    size = len(bitmap) // 4
    return np.rint(255 * bitmap.reshape(size, 4, size, 4).mean((1, 3))).astype(np.uint8)
