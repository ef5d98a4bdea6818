"""A small CIFAR-10 as folders of images, images of noise, and no network."""

import numpy as np
import pytest
from PIL import Image

from probattn.experiments.data.images import known_sets

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""In torchvision's order, that of the original batches.meta."""
TRAIN, TEST = 20, 3
"""Images per class of the small CIFAR-10 of these tests."""


@pytest.fixture(autouse=True)
def offline(no_network):
    """No test downloads anything."""


def picture(label, index):
    """A 32×32 RGB image that tells its class and its number."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:, :16] = (label, index, 200)
    return pixels


@pytest.fixture
def cifar_root(tmp_path, monkeypatch):
    """Folder of the data sets with the small CIFAR-10 as folders of images by class."""
    monkeypatch.setattr(known_sets, "CIFAR_SIZES", {"train": 10 * TRAIN, "test": 10 * TEST})
    for part, count, first in (("train", TRAIN, 0), ("test", TEST, 100)):
        for label, name in reversed(list(enumerate(CLASSES))):
            folder = tmp_path / "cifar10-jpeg" / part / name
            folder.mkdir(parents=True)
            for index in range(count):
                Image.fromarray(picture(label, first + index)).save(folder / f"{index:04}.png")
    return tmp_path


@pytest.fixture
def write():
    """Function that writes images of noise into a folder and returns their pixels."""

    def write(folder, count=3, shape=(32, 32, 3), suffix=".png", seed=0):
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)
        for number, image in enumerate(pixels):
            Image.fromarray(image).save(folder / f"{number:03}{suffix}")
        return pixels

    return write
