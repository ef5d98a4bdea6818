"""A small CIFAR-10, as folders of images or in torchvision's own format."""

import pickle
from urllib.error import URLError

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10

from probattn.experiments.data.images import cifar

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""In torchvision's order, that of the original batches.meta."""
TRAIN, TEST = 20, 3
"""Images per class of the small CIFAR-10 of these tests."""


def picture(label, index):
    """A 32×32 RGB image that tells its class and its number."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:, :16] = (label, index, 200)
    return pixels


def _write_folders(folder, suffix=".png"):
    for part, count in (("train", TRAIN), ("test", TEST)):
        for label, name in reversed(list(enumerate(CLASSES))):
            (folder / part / name).mkdir(parents=True)
            for index in range(count):
                image = Image.fromarray(picture(label, index + 100 * (part == "test")))
                image.save(folder / part / name / f"{index:04}{suffix}")


def _write_batches(root):
    """The small CIFAR-10 in torchvision's own format."""
    folder = root / CIFAR10.base_folder
    folder.mkdir(parents=True)
    for file, count, base in (("data_batch_1", TRAIN, 0), ("test_batch", TEST, 100)):
        pairs = [(label, base + index) for index in range(count) for label in range(10)]
        data = np.stack([picture(*pair).transpose(2, 0, 1).ravel() for pair in pairs])
        content = {"data": data, "labels": [label for label, _ in pairs]}
        (folder / file).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list(CLASSES)}, protocol=2))


@pytest.fixture
def write_folders():
    """The function (folder, suffix=".png") that writes the small CIFAR-10 as folders of images by class."""
    return _write_folders


@pytest.fixture
def write_batches():
    """The function (root) that writes the small CIFAR-10 in torchvision's format."""
    return _write_batches


@pytest.fixture
def small_cifar(monkeypatch):
    """CIFAR-10 with few images and unchecked MD5 sums, and no network."""

    def refuse(*arguments, **options):
        raise URLError("no network")

    small = cifar.CIFAR["cifar10"]._replace(num_train=10 * TRAIN, num_test=10 * TEST)
    monkeypatch.setitem(cifar.CIFAR, "cifar10", small)
    monkeypatch.setattr(CIFAR10, "train_list", [["data_batch_1", None]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", None]])
    monkeypatch.setattr(CIFAR10, "meta", {"filename": "batches.meta", "key": "label_names", "md5": None})
    monkeypatch.setattr(cifar, "download_and_extract", refuse)
    monkeypatch.delenv("PROBATTN_DATA", raising=False)


@pytest.fixture
def root(tmp_path, write_folders):
    write_folders(tmp_path / "cifar10-jpeg")
    return tmp_path


@pytest.fixture
def decoded(monkeypatch):
    """The folders that were decoded, in order."""
    calls, decode = [], cifar._decode
    monkeypatch.setattr(cifar, "_decode", lambda folder, names: calls.append(folder.name) or decode(folder, names))
    return calls


@pytest.fixture
def class_and_number():
    """Function of images that reads class and number of each, (n, 2), and checks channel order and orientation."""

    def read(data):
        assert (data.images[:, 2, :, :16] == 200).all()
        assert (data.images[..., 16:] == 0).all()
        return data.images[:, :2, 0, 0].long()

    return read
