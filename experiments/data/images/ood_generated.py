"""Generated out-of-distribution (OOD) sets for digits: printed letters, and patches of scikit-learn's photographs."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

LETTERS = "ACEFHKLMNPRUVWX"  # which differ from all digits at 8×8 pixels: without B D G I J O Q S T Y Z
# Styles of DejaVu that come with matplotlib.
FONTS = ("Sans", "Sans-Bold", "Sans-BoldOblique", "Serif", "Serif-Bold", "SansMono-Bold")
COPIES, PATCHES = 4, 180  # of each letter in each style, and of each photograph


def letters(*, size: int, seed: int = 0) -> list[np.ndarray]:
    """Return 360 printed capitals, white on black, uint8 (size, size), that resemble scikit-learn's digits.

    Like the digits (Alpaydin & Kaynak, 1998), they are bitmaps of side 4·size of which the dots in each 4×4 block are
    counted. Each letter has four copies in each of six styles: sheared, rotated, stretched and shifted at random.
    """
    import matplotlib

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    generator = np.random.default_rng(seed)
    images = []
    for style in FONTS:
        font = ImageFont.truetype(folder / f"DejaVu{style}.ttf", 16 * size)
        for letter in LETTERS:
            glyph = _glyph(letter, font, stroke=size // 4)
            bitmaps = [_distort(glyph, side=4 * size, generator=generator) for _ in range(COPIES)]
            shares = np.reshape(bitmaps, (COPIES, size, 4, size, 4)).mean((2, 4))
            images.extend(np.rint(255 * shares).astype(np.uint8))
    return images


def patches(*, seed: int = 0) -> list[np.ndarray]:
    """Return 360 square patches of a temple and a flower at random positions, 32 to 160 pixels wide, uint8 (h, h, 3).

    The photographs are part of scikit-learn.
    """
    from sklearn.datasets import load_sample_image

    generator = np.random.default_rng(seed)
    images = []
    for photograph in map(load_sample_image, ("china.jpg", "flower.jpg")):
        for side in generator.integers(32, 160, PATCHES, endpoint=True):
            top, left = (generator.integers(length - side) for length in photograph.shape[:2])
            images.append(photograph[top : top + side, left : left + side])
    return images


def _glyph(letter: str, font: ImageFont.FreeTypeFont, *, stroke: int) -> Image.Image:
    """Return the letter, white on black, cropped to its bounding box and ``stroke`` pixels bolder on each side."""
    left, top, right, bottom = font.getbbox(letter, stroke_width=stroke)
    glyph = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(glyph).text((-left, -top), letter, fill=255, font=font, stroke_width=stroke)
    return glyph


def _distort(glyph: Image.Image, *, side: int, generator: np.random.Generator) -> np.ndarray:
    """Return the glyph as a randomly distorted bitmap, bool (side, side), that fills its height but not its width."""
    shear, angle = generator.uniform(-0.2, 0.2), generator.uniform(-0.1, 0.1)
    scale_y = generator.uniform(0.9, 1.05) * side / glyph.height
    scale_x = min(generator.uniform(0.7, 0.9) * scale_y, generator.uniform(0.65, 0.8) * side / glyph.width)
    centre = side * (0.5 + generator.uniform(-0.04, 0.04, 2))
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    inverse = np.linalg.inv(rotation @ [[1, shear], [0, 1]] @ np.diag([scale_x, scale_y]))  # from output to input
    offset = np.array(glyph.size) / 2 - inverse @ centre
    coefficients = np.column_stack([inverse, offset]).ravel().tolist()
    bitmap = glyph.transform((side, side), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)
    return np.asarray(bitmap) > 127
