"""Labelled images: statistics, selection and digest."""

import pytest
import torch

from probattn.experiments.data.images.image_datasets import Images, channel_statistics


def test_channel_statistics_are_those_of_the_scaled_pixels():
    images = torch.randint(0, 256, (11, 3, 4, 6), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    images[:, 1] //= 2
    scaled = images.double() / 255
    mean, std = channel_statistics(images)
    torch.testing.assert_close(torch.tensor(mean).double(), scaled.mean((0, 2, 3)), atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.tensor(std).double(), scaled.std((0, 2, 3), unbiased=False), atol=1e-6, rtol=0)


def test_tensors_of_another_kind_are_refused():
    with pytest.raises(ValueError, match=r"images must be uint8 \(n, C, H, W\), got torch.float32 \(2, 1, 3, 3\)"):
        Images(torch.zeros(2, 1, 3, 3), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match=r"labels must be int64 \(2,\), got torch.int64 \(3,\)"):
        Images(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.zeros(3, dtype=torch.long))


def test_select():
    data = Images(torch.arange(4, dtype=torch.uint8).view(-1, 1, 1, 1), torch.arange(4) * 10)
    chosen = data.select(torch.tensor([3, 1]))
    assert len(chosen) == 2
    assert chosen.images.flatten().tolist() == [3, 1]
    assert chosen.labels.tolist() == [30, 10]


def test_the_digest_changes_with_every_pixel_label_and_place():
    images, labels = torch.arange(12, dtype=torch.uint8).view(3, 1, 2, 2), torch.tensor([0, 1, 2])
    data = Images(images, labels)
    assert data.digest == Images(images.clone(), labels.clone()).digest
    others = [Images(images + (images == value).to(torch.uint8), labels) for value in range(12)]
    others += [Images(images, labels + (labels == value)) for value in range(3)]
    others += [data.select(torch.tensor(order)) for order in ([0, 2, 1], [0, 1], [0, 1, 2, 2])]
    others += [Images(images.view(3, 2, 2, 1), labels)]
    assert len({data.digest, *(each.digest for each in others)}) == 1 + len(others)
