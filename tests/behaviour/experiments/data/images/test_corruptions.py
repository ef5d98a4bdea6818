"""Corruptions by name: severities of CIFAR-C, seeds, sizes, grey images, and what is refused."""

import itertools

import numpy as np
import pytest
import torch

from probattn.experiments.data.images.corruptions import STANDARD, corrupt

IDENTITY_ON_CONSTANTS = (
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("elastic_transform", "pixelate", "contrast"),
)


def smooth(n=6, channels=3, side=32, seed=0):
    """Images with structure at several scales: a sum of waves."""
    rng = np.random.default_rng(seed)
    at = np.arange(side) / side
    images = np.zeros((n, channels, side, side))
    for _ in range(8):
        rows, columns, phase, weight = (rng.uniform(-5, 5, size=(n, channels, 1, 1)) for _ in range(4))
        images += weight * np.cos(2 * np.pi * (rows * at[:, None] + columns * at) + phase)
    images -= images.min(axis=(2, 3), keepdims=True)
    return torch.from_numpy(np.uint8(255 * images / images.max(axis=(2, 3), keepdims=True)))


def luma(images):
    return (images.double() * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(dim=1, keepdim=True)


@pytest.mark.parametrize("name", STANDARD)
def test_same_name_severity_and_seed_give_the_same_images(name):
    images = smooth(n=3)
    kept = images.clone()
    first = corrupt(images, name, 4, seed=1)
    torch.rand(1)  # no state of torch or NumPy matters
    np.random.rand(1)
    assert torch.equal(first, corrupt(images, name, 4, seed=1))
    assert torch.equal(images, kept)
    assert not torch.equal(first, images)
    fixed = name in ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
    assert torch.equal(first, corrupt(images, name, 4, seed=2)) == fixed


def test_later_images_leave_earlier_blocks_as_they_are():
    images = torch.randint(0, 256, (2100, 1, 4, 4), dtype=torch.uint8)
    whole = corrupt(images, "impulse_noise", 5, seed=3)
    assert torch.equal(whole[:1000], corrupt(images[:1000], "impulse_noise", 5, seed=3))
    assert torch.equal(whole[:2000], corrupt(images[:2000], "impulse_noise", 5, seed=3))


@pytest.mark.parametrize("name", STANDARD)
def test_images_of_any_size_stay_in_their_range(name):
    for shape, severity in itertools.product([(2, 1, 8, 8), (2, 3, 33, 33), (1, 3, 64, 48)], (1, 3, 5)):
        for value in (0, 255):
            constant = torch.full(shape, value, dtype=torch.uint8)
            out = corrupt(constant, name, severity)
            assert (out.shape, out.dtype) == (constant.shape, torch.uint8)
            if name in IDENTITY_ON_CONSTANTS:
                assert torch.equal(out, constant)
    # Mid-grey with a dark and a light half: a wrong scale or a clipped sign would drive it to black or white.
    halves = torch.full((1, 1, 16, 40), 100, dtype=torch.uint8)
    halves[..., 20:] = 160
    assert 60 < corrupt(halves, name, 3).double().mean() < 220


# The affine part of elastic_transform shrinks while its waves grow;
# frost and fog also lower the image's own weight; glass changes two numbers.
UNORDERED = ("elastic_transform", "frost", "fog", "glass_blur")


@pytest.mark.parametrize("name", STANDARD)
def test_the_difference_grows_with_severity(name):
    images = smooth(n=10)
    change = [(corrupt(images, name, k).double() - images.double()).abs().mean() for k in range(1, 6)]
    assert min(change) > 0.5
    assert name in UNORDERED or all(low < high for low, high in itertools.pairwise(change)), change


@pytest.mark.parametrize("name", STANDARD[3:])
def test_a_grey_image_is_the_luma_of_three_equal_channels(name):
    grey = smooth(n=3, channels=1, side=8) // 4 + 20  # dark enough that colour is not clipped
    severity = 2 if name == "frost" else 5
    of_grey = corrupt(grey, name, severity).double()
    of_colour = luma(corrupt(grey.repeat(1, 3, 1, 1), name, severity))
    # JPEG rounds luma and colours apart; some of frost's blue is clipped.
    assert (of_grey - of_colour).abs().max() <= (3 if name in ("jpeg_compression", "frost") else 1)


def test_values_are_truncated_and_whole_levels_kept():
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    out = corrupt(ramp, "contrast", 2)  # 127.5 + (x − 127.5) / 2 = x / 2 + 63.75
    assert torch.equal(out, (ramp.double() / 2 + 63.75).floor().to(torch.uint8))
