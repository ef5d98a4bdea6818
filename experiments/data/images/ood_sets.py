"""Out-of-distribution (OOD) image sets, on which a network should be uncertain: stored, of a
folder, or generated."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torchvision.datasets import SVHN
from torchvision.datasets.utils import download_and_extract_archive

from probattn.experiments.data.dataset import Root, data_root
from probattn.experiments.data.errors import DatasetError, unknown_name
from probattn.experiments.data.images.files import (
    check_number,
    decode_all,
    find_files,
    is_image,
    pixels,
    read_pixels,
)
from probattn.experiments.data.images.image_datasets import Images
from probattn.experiments.data.images.known_sets import CIFAR, downloading, read_cifar
from probattn.inference.imports import extra

# Folder under the root, number of images, and the class of pytorch-ood that downloads them, by
# name.
ARCHIVES = {
    "lsun": ("lsun-test", 10_000, None),
    "lsun-crop": ("LSUN/test", 10_000, "LSUNCrop"),
    "lsun-resize": ("LSUN_resize/LSUN_resize", 10_000, "LSUNResize"),
    "textures": ("dtd/images", 5_640, "Textures"),
    "tinyimagenet-crop": ("Imagenet/test", 10_000, "TinyImageNetCrop"),
}
NAMES = ("svhn", *CIFAR, *ARCHIVES, "letters", "patches")  # of :func:`load`
# Letters which differ from all digits at 8×8 pixels, without B D G I J O Q S T Y Z; and how many
# images there are.
LETTERS = "ACEFHKLMNPRUVWX"
# Styles of DejaVu that come with matplotlib.
FONTS = ("Sans", "Sans-Bold", "Sans-BoldOblique", "Serif", "Serif-Bold", "SansMono-Bold")
COPIES, PATCHES = 4, 180  # of each letter in each style, and of each photograph


def default_names(in_distribution: str) -> tuple[str, ...]:
    """Return the names of the default OOD sets for a network trained on the data set
    ``in_distribution``.

    Those of CIFAR are the sets of the KEP-SVGP (Table 3) and CGP (Table III) papers that can be
    downloaded; those of digits and other images need no download.
    """
    if in_distribution not in CIFAR:
        return "letters", "patches"
    (similar,) = CIFAR.keys() - {in_distribution}
    return "svhn", similar, *(name for name, (*_, source) in ARCHIVES.items() if source)


def load(
    name: str, *, root: Root = None, size: int, channels: int, limit: int | None = None
) -> Images:
    """Load an OOD set, converted to the size and channels that a network expects; all labels are
    −1.

    ``svhn``, ``cifar10`` and ``cifar100`` are the test parts. ``lsun`` are LSUN's own test images,
    exported by its authors' script to ``<root>/lsun-test``. The other sets of LSUN, ``textures``
    (DTD) and ``tinyimagenet-crop`` are those of pytorch-ood, unpacked under ``root`` as it does.
    ``letters`` and ``patches`` are generated. Images of any shape are resized to a square
    (bilinear, antialiased); colour is converted to grey and grey to colour, and transparent images
    stand on white.

    Args:
        name: one of :data:`NAMES`, or the path of a folder with images at any depth, such as
            ``./photos``.
        root: root folder of the data sets; default: ``$PROBATTN_DATA``, else ``data``.
        size: height and width, in pixels.
        channels: 1 (grey) or 3 (red, green, blue).
        limit: read at most this many images.

    Raises:
        ValueError: an unknown name.
        DatasetError: images are missing, incomplete or damaged.
    """
    shape = (channels, size, size)

    def decode(source: Path | np.ndarray) -> np.ndarray:
        if isinstance(source, Path):
            return read_pixels(source, shape, crop=False)
        return pixels(Image.fromarray(source), shape, crop=False)

    images = decode_all(decode, islice(_sources(name, data_root(root), size), limit))
    return Images(images, torch.full((len(images),), -1))


def _sources(name: str, root: Path, size: int) -> Iterable[Path | np.ndarray]:
    if name in ARCHIVES:
        return _archive(root, *ARCHIVES[name])
    if name == "letters":
        return letters(size=size)
    if name == "patches":
        return patches()
    if name == "svhn":
        folder = (root / "svhn").absolute()
        with downloading("SVHN", folder, SVHN.split_list["test"][0]):
            return SVHN(folder, split="test", download=True).data.transpose(0, 2, 3, 1)
    if name in CIFAR:
        return read_cifar(name, root)[2].images.permute(0, 2, 3, 1).numpy()
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise ValueError(
            unknown_name(
                "OOD set", name, NAMES, listing="or name a folder of images, such as ./photos"
            )
        )
    return _find_images(folder)


def _archive(root: Path, place: str, number: int, source: str | None) -> list[Path]:
    """Return the image files of an archive, downloaded and extracted if its folder is missing."""
    folder = root / place
    if not folder.is_dir() and source:
        with extra("ood", needed_by=f"the download of images that are not in {folder.absolute()}"):
            from pytorch_ood.dataset import img
        archive = getattr(img, source)
        with downloading(source, f"{folder.absolute()} or {archive.filename}", archive.url):
            download_and_extract_archive(
                archive.url, root, filename=archive.filename, md5=archive.tgz_md5
            )
    images = _find_images(folder)
    check_number(folder, len(images), number)
    return images


def _find_images(folder: Path) -> list[Path]:
    """Return the files of a folder of images at any depth, sorted by their paths, without hidden
    ones."""
    images = sorted(filter(is_image, find_files(folder)))
    if not images:
        raise DatasetError(f"{folder.absolute()} holds no image")
    return images


def letters(*, size: int) -> list[np.ndarray]:
    """Return 360 printed capitals, white on black, uint8 (size, size), that resemble scikit-learn's
    digits.

    Like the digits (Alpaydin & Kaynak, 1998), they are bitmaps of side 4·size of which the dots in
    each 4×4 block are counted. Each letter has four copies in each of six styles: sheared, rotated,
    stretched and shifted at random.
    """
    import matplotlib

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    generator = np.random.default_rng(0)
    images = []
    for style in FONTS:
        font = ImageFont.truetype(folder / f"DejaVu{style}.ttf", 16 * size)
        for letter in LETTERS:
            glyph = _glyph(letter, font, stroke=size // 4)
            bitmaps = [_distort(glyph, side=4 * size, generator=generator) for _ in range(COPIES)]
            shares = np.reshape(bitmaps, (COPIES, size, 4, size, 4)).mean((2, 4))
            images.extend(np.rint(255 * shares).astype(np.uint8))
    return images


def patches() -> list[np.ndarray]:
    """Return 360 square patches of a temple and a flower at random positions, 32 to 160 pixels
    wide, uint8 (h, h, 3).

    The photographs are part of scikit-learn.
    """
    from sklearn.datasets import load_sample_image

    generator = np.random.default_rng(0)
    images = []
    for photograph in map(load_sample_image, ("china.jpg", "flower.jpg")):
        for side in generator.integers(32, 160, PATCHES, endpoint=True):
            y, x = (generator.integers(length - side) for length in photograph.shape[:2])
            images.append(photograph[y : y + side, x : x + side])
    return images


def _glyph(letter: str, font: ImageFont.FreeTypeFont, *, stroke: int) -> Image.Image:
    """Return the letter, white on black, cropped to its bounding box and ``stroke`` pixels bolder
    on each side."""
    x, y, right, bottom = map(int, font.getbbox(letter, stroke_width=stroke))
    glyph = Image.new("L", (right - x, bottom - y))
    ImageDraw.Draw(glyph).text((-x, -y), letter, fill=255, font=font, stroke_width=stroke)
    return glyph


def _distort(glyph: Image.Image, *, side: int, generator: np.random.Generator) -> np.ndarray:
    """Return the glyph as a randomly distorted bitmap, bool (side, side), that fills its height but
    not its width."""
    shear = generator.uniform(-0.2, 0.2)
    angle = generator.uniform(-0.1, 0.1)
    scale_y = generator.uniform(0.9, 1.05) * side / glyph.height
    scale_x = min(
        generator.uniform(0.7, 0.9) * scale_y, generator.uniform(0.65, 0.8) * side / glyph.width
    )
    centre = side * (0.5 + generator.uniform(-0.04, 0.04, 2))
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    inverse = np.linalg.inv(
        rotation @ [[1, shear], [0, 1]] @ np.diag([scale_x, scale_y])
    )  # from output to input
    offset = np.array(glyph.size) / 2 - inverse @ centre
    coefficients = np.column_stack([inverse, offset]).ravel().tolist()
    bitmap = glyph.transform(
        (side, side), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR
    )
    return np.asarray(bitmap) > 127
