"""Digits, and CIFAR from torchvision's files and from folders: parts, validation part, limit, errors."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torchvision.datasets import CIFAR100

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.image_datasets import channel_statistics
from probattn.experiments.data.images.known_sets import load

pytestmark = pytest.mark.usefixtures("small_cifar")
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN, TEST = 20, 3
"""Images per class of the small CIFAR-10."""


@pytest.fixture
def root(tmp_path, write_folders):
    write_folders(tmp_path / "cifar10-jpeg")
    return tmp_path


def class_and_number(data):
    """Return class and number of each image, (n, 2); checks channel order and orientation."""
    assert (data.images[:, 2, :, :16] == 200).all()
    assert (data.images[..., 16:] == 0).all()
    return data.images[:, :2, 0, 0].long()


def numbers(data):
    return {tuple(row) for row in class_and_number(data).tolist()}


@pytest.mark.parametrize("place", ["cifar10-jpeg", "torchvision"])
def test_every_place_gives_the_same_parts(tmp_path, place, write_folders, write_batches):
    if place == "torchvision":
        write_batches(tmp_path)
    else:
        write_folders(tmp_path / place)
    data = load("cifar10", root=tmp_path)
    assert data.name == "cifar10"
    assert data.classes == CLASSES
    assert data.augment
    for part in (data.train, data.valid, data.test):
        assert torch.equal(class_and_number(part)[:, 0], part.labels)
    assert len(numbers(data.train) | numbers(data.valid)) == 10 * TRAIN
    assert numbers(data.test) == {(label, 100 + index) for label in range(10) for index in range(TEST)}


def test_cifar100_uses_the_fine_labels(tmp_path, monkeypatch):
    folder = tmp_path / CIFAR100.base_folder
    folder.mkdir()
    for part, count in (("train", 20), ("test", 2)):
        fine = [label for label in range(100) for _ in range(count)]
        data = np.zeros((len(fine), 3, 32, 32), np.uint8)
        data[:, 0, :, :16], data[:, 1:, :, :16] = np.array(fine)[:, None, None], 200
        data = data.reshape(len(fine), -1)
        (folder / part).write_bytes(pickle.dumps({"data": data, "fine_labels": fine}, protocol=2))
    names = [f"class {label:02}" for label in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}, protocol=2))
    monkeypatch.setattr(CIFAR100, "train_list", [["train", None]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", None]])
    monkeypatch.setattr(CIFAR100, "meta", {"filename": "meta", "key": "fine_label_names", "md5": None})
    data = load("cifar100", root=tmp_path)
    assert data.classes == tuple(names)
    assert torch.equal(class_and_number(data.train)[:, 0], data.train.labels)
    assert data.valid.labels.bincount().tolist() == [2] * 100


def test_the_validation_part_is_a_stratified_tenth_fixed_by_the_seed(root):
    first, again, other = (load("cifar10", root=root, seed=seed) for seed in (0, 0, 1))
    assert first.train.labels.bincount().tolist() == [18] * 10
    assert first.valid.labels.bincount().tolist() == [2] * 10
    assert numbers(first.train) | numbers(first.valid) == {(c, i) for c in range(10) for i in range(TRAIN)}
    assert torch.equal(first.valid.images, again.valid.images)
    assert numbers(first.valid) != numbers(other.valid)
    assert torch.equal(first.test.images, other.test.images)
    assert (first.mean, first.std) == channel_statistics(first.train.images)


@pytest.mark.parametrize(("limit", "sizes"), [(30, (30, 10)), (999, (180, 20))])
def test_a_limit_cuts_training_and_validation_part_in_proportion(root, limit, sizes):
    data, whole = load("cifar10", root=root, limit=limit), load("cifar10", root=root)
    assert (len(data.train), len(data.valid), len(data.test)) == (*sizes, 30)
    for part in (data.train, data.valid):
        counts = part.labels.bincount(minlength=10)
        assert counts.max() - counts.min() <= 1
    assert numbers(data.train) <= numbers(whole.train)
    assert numbers(data.valid) <= numbers(whole.valid)


def test_an_incomplete_folder_and_data_that_are_nowhere_are_named(root, tmp_path):
    (root / "cifar10-jpeg" / "train" / "dog" / "0003.png").unlink()
    with pytest.raises(DatasetError, match=f"{root / 'cifar10-jpeg' / 'train'} holds 199 of 200 images"):
        load("cifar10", root=root)
    with pytest.raises(DatasetError, match=f"CIFAR-10 is not in {tmp_path / 'a'}.*--data"):
        load("cifar10", root=tmp_path / "a")


def test_every_digit_is_in_one_part_scaled_to_bytes_and_the_parts_are_stratified():
    bunch, data = load_digits(), load("digits")
    expected = sorted(
        (label, *[round(value * 255 / 16) for value in image.ravel()])
        for image, label in zip(bunch.images, bunch.target.tolist(), strict=True)
    )
    parts = (data.train, data.valid, data.test)
    pairs = [pair for part in parts for pair in zip(part.images, part.labels.tolist(), strict=True)]
    assert sorted((label, *image.flatten().tolist()) for image, label in pairs) == expected
    assert [len(part) for part in parts] == [1079, 359, 359]
    whole = sum(part.labels.bincount() for part in parts)
    for part, share in zip(parts, (0.6, 0.2, 0.2), strict=True):
        assert (part.labels.bincount() - share * whole).abs().max() <= 2
    again, other = load("digits", seed=0), load("digits", seed=4)
    assert torch.equal(data.test.images, again.test.images)
    assert not torch.equal(data.test.images, other.test.images)
