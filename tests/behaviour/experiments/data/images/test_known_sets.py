"""Digits, and CIFAR from folders: parts, validation part, errors."""

import pytest
import torch
from sklearn.datasets import load_digits

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.image_datasets import channel_statistics
from probattn.experiments.data.images.known_sets import load

TRAIN, TEST = 20, 3
"""Images per class of the small CIFAR-10."""


def class_and_number(data):
    """Return class and number of each image, (n, 2); checks channel order and orientation."""
    assert (data.images[:, 2, :, :16] == 200).all()
    assert (data.images[..., 16:] == 0).all()
    return data.images[:, :2, 0, 0].long()


def numbers(data):
    return {tuple(row) for row in class_and_number(data).tolist()}


def test_the_validation_part_is_a_stratified_tenth_fixed_by_the_seed(cifar_root):
    first, again, other = (load("cifar10", root=cifar_root, seed=seed) for seed in (0, 0, 1))
    assert (first.classes[0], first.classes[9], first.augment) == ("airplane", "truck", True)
    for part in (first.train, first.valid, first.test):
        assert torch.equal(class_and_number(part)[:, 0], part.labels)
    assert first.train.labels.bincount().tolist() == [18] * 10
    assert first.valid.labels.bincount().tolist() == [2] * 10
    assert numbers(first.train) | numbers(first.valid) == {
        (c, i) for c in range(10) for i in range(TRAIN)
    }
    assert numbers(first.test) == {
        (label, 100 + index) for label in range(10) for index in range(TEST)
    }
    assert torch.equal(first.valid.images, again.valid.images)
    assert numbers(first.valid) != numbers(other.valid)
    assert torch.equal(first.test.images, other.test.images)
    assert (first.mean, first.std) == channel_statistics(first.train.images)


def test_an_incomplete_folder_and_data_that_are_nowhere_are_named(cifar_root):
    (cifar_root / "cifar10-jpeg" / "train" / "dog" / "0003.png").unlink()
    with pytest.raises(DatasetError, match="train holds 199 of 200 images"):
        load("cifar10", root=cifar_root)
    with pytest.raises(DatasetError, match="nowhere.*--data"):
        load("cifar10", root=cifar_root / "nowhere")


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
    assert not torch.equal(data.test.images, load("digits", seed=4).test.images)
