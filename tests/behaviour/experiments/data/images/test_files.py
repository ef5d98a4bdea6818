"""Image files: orientation, transparency in every encoding, sizes, and files that cannot be
read."""

import os

import numpy as np
import pytest
from PIL import Image

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import find_files, pixels, read_pixels

SHAPE = (3, 8, 8)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_upright_whatever_their_exif_orientation(tmp_path, orientation):
    upright = np.zeros((16, 16, 3), np.uint8)
    upright[:8, :8], upright[:8, 8:], upright[8:, :8] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    undo = {
        2: 0,
        3: 3,
        4: 1,
        5: 5,
        6: 2,
        7: 6,
        8: 4,
    }  # methods of Image.transpose, which the camera did
    stored = Image.fromarray(upright)
    if orientation > 1:
        stored = stored.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "photo.jpg", exif=exif, quality=100)
    result = read_pixels(tmp_path / "photo.jpg", (3, 16, 16)).transpose(1, 2, 0).astype(int)
    assert np.abs(result - upright).mean() < 12  # what JPEG loses


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("mode", "suffix"), [("RGBA", "png"), ("LA", "png"), ("RGBA", "webp"), ("PA", "tif")]
)
def test_transparent_images_stand_on_the_background(tmp_path, mode, suffix, channels):
    alpha = Image.new("L", (8, 8), 0)
    alpha.paste(255, (0, 0, 4, 8))  # the left half is black and opaque
    image = Image.new("P", (8, 8))
    image.putpalette([0, 0, 0])
    image = image.convert(mode)
    image.putalpha(alpha)
    image.save(tmp_path / f"icon.{suffix}", lossless=True)
    result = read_pixels(tmp_path / f"icon.{suffix}", (channels, 8, 8), background="#ffc800")
    background = [255, 200, 0] if channels == 3 else [round(0.299 * 255 + 0.587 * 200)]
    assert (result[:, :, :4] == 0).all()
    assert (result[:, :, 4:] == np.array(background)[:, None, None]).all()
    with pytest.raises(DatasetError, match="cannot be seen on black: .*background"):
        read_pixels(tmp_path / f"icon.{suffix}", SHAPE, background="black")


def test_the_shorter_side_is_scaled_and_the_middle_kept():
    wide = np.zeros((4, 12, 3), dtype=np.uint8)
    wide[:, 4:8] = 200  # the middle square
    assert (pixels(Image.fromarray(wide), (3, 4, 4)) == 200).all()
    assert pixels(Image.fromarray(wide.transpose(1, 0, 2)), (3, 4, 4)).min() == 200
    assert pixels(Image.fromarray(wide), (1, 2, 6), crop=False).shape == (1, 2, 2)


@pytest.mark.parametrize(("level", "kind"), [(40_000, np.uint16), (0, np.int32), (0.5, np.float32)])
def test_a_frame_of_one_level_is_black_and_one_without_numbers_refused(level, kind):
    frame = np.full((4, 4), level, dtype=kind)
    assert (pixels(Image.fromarray(frame), (3, 4, 4)) == 0).all()
    if kind == np.float32:
        frame[1, 1] = np.inf
        with pytest.raises(ValueError, match="8 bits"):
            pixels(Image.fromarray(frame), (3, 4, 4))


@pytest.mark.parametrize("corners", [1, 2, 4])
@pytest.mark.parametrize("ink", [255, 250, 0])
def test_a_page_with_clear_corners_is_seen_on_any_background(corners, ink):
    page = np.full((16, 16, 4), 255, dtype=np.uint8)
    page[4:6, 4:12, :3] = ink
    for row, column in ((0, 0), (0, 15), (15, 0), (15, 15))[:corners]:
        page[row, column, 3] = 0
    seen = pixels(Image.fromarray(page), (1, 16, 16), background="white")
    assert (seen[0, 4:6, 4:12] == ink).all()
    icon = page.copy()
    icon[8:, :, 3] = 0  # half of it is clear
    if ink >= 250:
        with pytest.raises(ValueError, match="data.background"):
            pixels(Image.fromarray(icon), (1, 16, 16), background="white")


def test_links_are_followed_and_hidden_files_left_out(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    Image.new("RGB", (8, 8), "red").save(tmp_path / "elsewhere" / "good.png")
    (tmp_path / "data" / ".hidden").mkdir(parents=True)
    for name in ("._0000.png", "Thumbs.db", ".hidden/x.png", "notes.txt"):
        (tmp_path / "data" / name).touch()
    (tmp_path / "data" / "more").symlink_to(tmp_path / "elsewhere")
    names = [file.name for file in find_files(tmp_path / "data")]
    assert names == ["notes.txt", "good.png"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_image_file_is_named(tmp_path, make):
    make(tmp_path / "a.png")
    with pytest.raises(DatasetError, match=r"cannot read .*a\.png"):
        read_pixels(tmp_path / "a.png", SHAPE)
