"""A small CIFAR-10, as folders of images or in torchvision's own format, and no network."""

import pickle
from urllib.error import URLError

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10

from probattn.experiments.data.images import known_sets

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""In torchvision's order, that of the original batches.meta."""
TRAIN, TEST = 20, 3
"""Images per class of the small CIFAR-10 of these tests."""


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.delenv("PROBATTN_DATA", raising=False)


def picture(label, index):
    """A 32×32 RGB image that tells its class and its number."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:, :16] = (label, index, 200)
    return pixels


@pytest.fixture
def write_folders():
    """The function (folder) that writes the small CIFAR-10 as folders of images by class."""

    def write(folder):
        for part, count in (("train", TRAIN), ("test", TEST)):
            for label, name in reversed(list(enumerate(CLASSES))):
                (folder / part / name).mkdir(parents=True)
                for index in range(count):
                    image = Image.fromarray(picture(label, index + 100 * (part == "test")))
                    image.save(folder / part / name / f"{index:04}.png")

    return write


@pytest.fixture
def write_batches():
    """The function (root) that writes the small CIFAR-10 in torchvision's format."""

    def write(root):
        folder = root / CIFAR10.base_folder
        folder.mkdir(parents=True)
        for file, count, base in (("data_batch_1", TRAIN, 0), ("test_batch", TEST, 100)):
            pairs = [(label, base + index) for index in range(count) for label in range(10)]
            data = np.stack([picture(*pair).transpose(2, 0, 1).ravel() for pair in pairs])
            content = {"data": data, "labels": [label for label, _ in pairs]}
            (folder / file).write_bytes(pickle.dumps(content, protocol=2))
        (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list(CLASSES)}, protocol=2))

    return write


@pytest.fixture
def small_cifar(monkeypatch):
    """CIFAR-10 with few images and unchecked MD5 sums."""
    monkeypatch.setattr(known_sets, "CIFAR_SIZES", {"train": 10 * TRAIN, "test": 10 * TEST})
    monkeypatch.setattr(CIFAR10, "train_list", [["data_batch_1", None]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", None]])
    monkeypatch.setattr(CIFAR10, "meta", {"filename": "batches.meta", "key": "label_names", "md5": None})


@pytest.fixture
def write():
    """Function that writes images of noise into a folder and returns their pixels."""

    def write(folder, count=3, shape=(32, 32, 3), suffix=".png", seed=0):
        folder.mkdir(parents=True, exist_ok=True)
        rngs = [np.random.default_rng(seed + number) for number in range(count)]
        pixels = [rng.integers(0, 256, shape, dtype=np.uint8) for rng in rngs]
        for number, image in enumerate(pixels):
            Image.fromarray(image).save(folder / f"{number:03}{suffix}")
        return np.stack(pixels)

    return write


@pytest.fixture
def pixels_of():
    """Function of labelled images that returns pixels (n, H, W, C)."""
    return lambda data: data.images.permute(0, 2, 3, 1).numpy()
