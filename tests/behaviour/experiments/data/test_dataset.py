"""Parts of data sets, statistics and digests, and the preprocessing of a run."""

import pytest
import torch
from torch.testing import assert_close

from probattn.experiments.data.dataset import read_preprocessing, stratified_order
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.image_datasets import ImageDataset, Images, channel_statistics


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_every_prefix_holds_the_classes_in_proportion():
    labels = torch.arange(7).repeat(9)
    order = stratified_order(labels, generator=seeded())
    assert torch.equal(order.sort().values, torch.arange(63))
    for end in range(1, 64):
        counts = labels[order[:end]].bincount(minlength=7)
        assert counts.max() - counts.min() <= 1


def test_channel_statistics_are_those_of_the_scaled_pixels():
    images = torch.randint(0, 256, (11, 3, 4, 6), generator=seeded()).to(torch.uint8)
    images[:, 1] //= 2
    scaled = images.double() / 255
    mean, std = channel_statistics(images)
    assert_close(torch.tensor(mean).double(), scaled.mean((0, 2, 3)), atol=1e-6, rtol=0)
    assert_close(
        torch.tensor(std).double(), scaled.std((0, 2, 3), unbiased=False), atol=1e-6, rtol=0
    )


def test_the_digest_changes_with_every_pixel_label_and_place():
    images, labels = torch.arange(12, dtype=torch.uint8).view(3, 1, 2, 2), torch.tensor([0, 1, 2])
    data = Images(images, labels)
    assert data.digest == Images(images.clone(), labels.clone()).digest
    others = [Images(images + (images == value).to(torch.uint8), labels) for value in range(12)]
    others += [Images(images, labels + (labels == value)) for value in range(3)]
    others += [data.select(torch.tensor(order)) for order in ([0, 2, 1], [0, 1], [0, 1, 2, 2])]
    others += [Images(images.view(3, 2, 2, 1), labels)]
    assert len({data.digest, *(changed.digest for changed in others)}) == 1 + len(others)


def test_the_preprocessing_comes_back_and_a_damaged_file_is_refused(tmp_path):
    data = Images(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.arange(2))
    dataset = ImageDataset(
        "mine", ("α\n\ud800", "b"), data, data, data, (1e-300,), (2.5,), augment=True
    )
    dataset.save_preprocessing(tmp_path)
    content = {
        "classes": ["α\n\ud800", "b"],
        "kind": "images",
        "shape": [1, 8, 8],
        "mean": [1e-300],
        "std": [2.5],
    }
    assert read_preprocessing(tmp_path) == content
    (tmp_path / "preprocessing.json").write_text('{"a"')
    with pytest.raises(DatasetError, match=r"preprocessing\.json is missing or damaged"):
        read_preprocessing(tmp_path)
