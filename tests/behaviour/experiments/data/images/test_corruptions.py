"""Corruptions by name: severities of CIFAR-C, seeds, sizes, grey images, and its own files."""

import itertools

import numpy as np
import pytest
import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.corruptions import STANDARD, corrupt, corrupted_sets
from probattn.experiments.data.images.image_datasets import Images

IDENTITY_ON_CONSTANTS = (
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("elastic_transform", "pixelate", "contrast"),
)
FIXED = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
NAMES = ("gaussian_noise", "fog", "pixelate")
LABELS = np.arange(30, dtype=np.uint8) % 10


def smooth(n=6, channels=3, side=32):
    """Images with structure at several scales: a sum of waves."""
    rng = np.random.default_rng(0)
    place = np.arange(side) / side
    images = np.zeros((n, channels, side, side))
    for _ in range(8):
        rows, columns, phase, weight = (
            rng.uniform(-5, 5, size=(n, channels, 1, 1)) for _ in range(4)
        )
        images += weight * np.cos(2 * np.pi * (rows * place[:, None] + columns * place) + phase)
    images -= images.min(axis=(2, 3), keepdims=True)
    return torch.from_numpy(np.uint8(255 * images / images.max(axis=(2, 3), keepdims=True)))


@pytest.mark.parametrize("name", STANDARD)
def test_the_seed_fixes_the_images_which_stay_in_their_range_at_any_size(name):
    images = smooth(n=3)
    before, first = images.clone(), corrupt(images, name, 4, seed=1)
    torch.rand(1)  # no state of torch or NumPy matters
    np.random.rand(1)
    assert torch.equal(first, corrupt(images, name, 4, seed=1))
    assert torch.equal(images, before)
    assert torch.equal(first, corrupt(images, name, 4, seed=2)) == (name in FIXED)
    for shape, value in itertools.product([(2, 1, 8, 8), (2, 3, 33, 33), (1, 3, 64, 48)], (0, 255)):
        constant = torch.full(shape, value, dtype=torch.uint8)
        out = corrupt(constant, name, 5)
        assert (out.shape, out.dtype) == (constant.shape, torch.uint8)
        assert name not in IDENTITY_ON_CONSTANTS or torch.equal(out, constant)
    # Mid-grey with a dark and a light half: a wrong scale or a clipped sign would drive it to black
    # or white.
    halves = torch.full((1, 1, 16, 40), 100, dtype=torch.uint8)
    halves[..., 20:] = 160
    assert 60 < corrupt(halves, name, 3).double().mean() < 220


@pytest.mark.parametrize("name", STANDARD[3:])
def test_a_grey_image_is_the_luma_of_three_equal_channels(name):
    grey = smooth(n=3, channels=1, side=8) // 4 + 20  # dark enough that colour is not clipped
    severity = 2 if name == "frost" else 5
    of_colour = corrupt(grey.repeat(1, 3, 1, 1), name, severity).double()
    luma = (of_colour * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(dim=1, keepdim=True)
    # JPEG rounds luma and colours apart; some of frost's blue is clipped.
    tolerance = 3 if name in ("jpeg_compression", "frost") else 1
    assert (corrupt(grey, name, severity).double() - luma).abs().max() <= tolerance


def test_values_are_truncated_and_later_images_leave_earlier_blocks_as_they_are():
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    out = corrupt(ramp, "contrast", 2)  # 127.5 + (x − 127.5) / 2 = x / 2 + 63.75
    assert torch.equal(out, (ramp.double() / 2 + 63.75).floor().to(torch.uint8))
    images = torch.randint(0, 256, (2100, 1, 4, 4), dtype=torch.uint8)
    whole = corrupt(images, "impulse_noise", 5, seed=3)
    assert torch.equal(whole[:1000], corrupt(images[:1000], "impulse_noise", 5, seed=3))


@pytest.fixture
def test_images():
    return Images(torch.randint(0, 256, (30, 3, 32, 32), dtype=torch.uint8), torch.arange(30) % 10)


def numbered_images(number):
    """Official files in small: each image tells its corruption, severity and position."""
    pixels = np.zeros((150, 32, 32, 3), dtype=np.uint8)
    pixels[:, 0, 0, 0] = number
    pixels[:, 0, 0, 1], pixels[:, 0, 0, 2] = np.divmod(np.arange(150), 30)
    return pixels


@pytest.fixture
def official(tmp_path):
    (tmp_path / "CIFAR-10-C").mkdir()
    for number, name in enumerate(NAMES):
        np.save(tmp_path / "CIFAR-10-C" / f"{name}.npy", numbered_images(number))
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", np.tile(LABELS, 5))
    return tmp_path


def test_official_files_are_read_by_corruption_and_severity(official, test_images):
    _, images = corrupted_sets("cifar10", test_images, root=official, corruptions=NAMES)
    for (number, name), severity in itertools.product(enumerate(NAMES), range(1, 6)):
        part = images(name, severity)
        expected = torch.tensor([[number, severity - 1, place] for place in range(30)])
        assert torch.equal(part.images[:, :, 0, 0].long(), expected)
        assert part.labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(("name", "folder"), [("cifar10", "elsewhere"), ("digits", ".")])
def test_without_official_files_the_test_images_are_corrupted(official, test_images, name, folder):
    _, images = corrupted_sets(
        name, test_images, root=official / folder, corruptions=["fog", "motion_blur"]
    )
    assert torch.equal(
        images("motion_blur", 3).images, corrupt(test_images.images, "motion_blur", 3)
    )


@pytest.mark.parametrize(
    ("file", "content"),
    [("fog", numbered_images(1).transpose(0, 3, 1, 2)), ("labels", np.tile(LABELS + 1, 5))],
)
def test_official_files_of_another_content_are_named(official, test_images, file, content):
    np.save(official / "CIFAR-10-C" / f"{file}.npy", content)
    with pytest.raises(DatasetError, match="CIFAR-10-C"):
        corrupted_sets("cifar10", test_images, root=official, corruptions=NAMES)
