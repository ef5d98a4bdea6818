import os
import pickle
from pathlib import Path

import pytest
import torch

from probattn.experiments.data.images import cifar
from probattn.experiments.data.images.datasets import load

pytestmark = pytest.mark.usefixtures("small_cifar")
TEST = 3
"""Test images per class of the small CIFAR-10."""


@pytest.fixture
def numbers(class_and_number):
    return lambda data: {tuple(row) for row in class_and_number(data).tolist()}


def cache_of(root):
    (path,) = (root / ".probattn-cache").iterdir()
    assert path.name == "cifar10.pt"
    return path


def test_images_are_decoded_once(root, decoded, numbers):
    first, second = load("cifar10", root=root), load("cifar10", root=root, seed=1)
    assert decoded == ["train", "test"]
    assert cache_of(root)
    assert torch.equal(first.test.images, second.test.images)
    assert numbers(first.train) | numbers(first.valid) == numbers(second.train) | numbers(second.valid)


@pytest.mark.parametrize("folder", ["train", "test", "train/cat", "test/truck"])
def test_a_newer_folder_is_decoded_anew(root, decoded, folder):
    load("cifar10", root=root)
    changed = root / "cifar10-jpeg" / folder
    os.utime(changed, ns=(2**61, 2**61))
    load("cifar10", root=root)
    load("cifar10", root=root)
    assert decoded == ["train", "test"] * 2


def test_another_number_of_files_is_decoded_anew(root, decoded, monkeypatch):
    load("cifar10", root=root)
    for folder in (root / "cifar10-jpeg" / "test").iterdir():
        before = folder.stat()
        (folder / "0000.png").unlink()
        os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    small = cifar.CIFAR["cifar10"]._replace(num_test=10 * (TEST - 1))
    monkeypatch.setitem(cifar.CIFAR, "cifar10", small)
    assert len(load("cifar10", root=root).test) == 10 * (TEST - 1)
    assert decoded == ["train", "test"] * 2


def test_another_folder_is_decoded_anew(root, decoded):
    load("cifar10", root=root)
    (root / "cifar10-jpeg").rename(root / "cifar10")
    load("cifar10", root=root)
    assert decoded == ["train", "test"] * 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: b"",
        lambda whole: b"garbage" * 100,
        lambda whole: pickle.dumps([1, 2, 3]),
    ],
    ids=["half", "empty", "garbage", "pickle"],
)
def test_a_damaged_cache_is_made_anew(root, decoded, damage):
    expected = load("cifar10", root=root)
    path = cache_of(root)
    path.write_bytes(damage(path.read_bytes()))
    found = load("cifar10", root=root)
    assert torch.equal(found.train.images, expected.train.images)
    load("cifar10", root=root)
    assert decoded == ["train", "test"] * 2
    assert cache_of(root)


def test_a_root_that_cannot_be_written_is_no_error(root):
    (root / ".probattn-cache").write_text("a file, where the folder would be")
    assert len(load("cifar10", root=root).test) == 10 * TEST


def test_a_write_that_fails_leaves_nothing_behind(root, monkeypatch):
    def write(path, content):
        path.write_text("half")
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", write)
    assert len(load("cifar10", root=root).test) == 10 * TEST
    assert list((root / ".probattn-cache").iterdir()) == []
