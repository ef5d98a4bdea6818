import numpy as np
import pytest
import torch

from probattn.experiments.data.images.corruptions import CATEGORIES, CORRUPTIONS, EXTRA, STANDARD, corrupt

# From the program that made CIFAR-10-C, where zoom_blur is np.arange(1, end, 0.01).
CIFAR_C = {
    "gaussian_noise": [0.04, 0.06, 0.08, 0.09, 0.10],
    "shot_noise": [500, 250, 100, 75, 50],
    "impulse_noise": [0.01, 0.02, 0.03, 0.05, 0.07],
    "defocus_blur": [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
    "glass_blur": [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
    "motion_blur": [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    "zoom_blur": [1.06, 1.11, 1.16, 1.21, 1.26],
    "snow": [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
    "frost": [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)],
    "fog": [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    "brightness": [0.05, 0.1, 0.15, 0.2, 0.3],
    "contrast": [0.75, 0.5, 0.4, 0.3, 0.15],
    "elastic_transform": [(0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)],
    "pixelate": [0.95, 0.9, 0.85, 0.75, 0.65],
    "jpeg_compression": [80, 65, 58, 50, 40],
    "speckle_noise": [0.06, 0.1, 0.12, 0.16, 0.2],
    "gaussian_blur": [0.4, 0.6, 0.7, 0.8, 1],
    "spatter": [
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ],
    "saturate": [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)],
}

IDENTITY_ON_CONSTANTS = (
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"),
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


@pytest.mark.parametrize("name", CIFAR_C)
def test_severities_are_those_of_cifar_c(name):
    expected = [row if isinstance(row, tuple) else (row,) for row in CIFAR_C[name]]
    assert list(CORRUPTIONS[name].severities) == expected


def test_categories_and_order_are_those_of_cifar_c():
    assert tuple(CORRUPTIONS) == tuple(CIFAR_C)
    assert tuple(CIFAR_C)[:15] == STANDARD
    assert EXTRA == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    members = {category: [] for category in CATEGORIES}
    for name, corruption in CORRUPTIONS.items():
        members[corruption.category].append(name)
    assert [len(members[category]) for category in CATEGORIES] == [4, 5, 5, 5]
    assert [CORRUPTIONS[name].category for name in EXTRA] == ["noise", "blur", "weather", "digital"]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_same_name_severity_and_seed_give_the_same_images(name):
    images = smooth(n=3)
    kept = images.clone()
    first = corrupt(images, name, 4, seed=1)
    torch.rand(1)  # no state of torch or NumPy matters
    np.random.rand(1)
    assert torch.equal(first, corrupt(images, name, 4, seed=1))
    assert torch.equal(images, kept)
    assert not torch.equal(first, images)
    fixed = name in ("defocus_blur", "zoom_blur", "gaussian_blur", "brightness", "contrast", "saturate", "pixelate")
    fixed = fixed or name == "jpeg_compression"
    assert torch.equal(first, corrupt(images, name, 4, seed=2)) == fixed


def test_images_differ_in_what_is_drawn():
    out = corrupt(torch.full((1200, 1, 8, 8), 128, dtype=torch.uint8), "gaussian_noise", 5)
    assert len(out.flatten(1).unique(dim=0)) == 1200


def test_later_images_leave_earlier_blocks_as_they_are():
    images = torch.randint(0, 256, (2100, 1, 4, 4), dtype=torch.uint8)
    whole = corrupt(images, "impulse_noise", 5, seed=3)
    assert torch.equal(whole[:1000], corrupt(images[:1000], "impulse_noise", 5, seed=3))
    assert torch.equal(whole[:2000], corrupt(images[:2000], "impulse_noise", 5, seed=3))


@pytest.mark.parametrize("side", [8, 32, 33])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_any_size_black_and_white(name, channels, side):
    black = torch.zeros(2, channels, side, side, dtype=torch.uint8)
    for images in (black, black + 255):
        for severity in (1, 3, 5):
            out = corrupt(images, name, severity)
            assert out.shape == images.shape
            assert out.dtype == torch.uint8
            if name in IDENTITY_ON_CONSTANTS:
                assert torch.equal(out, images)
            if name == "brightness":
                assert (out == min(255, int(images.max()) + int(255 * CIFAR_C[name][severity - 1]))).all()


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (0, 1, 8, 8), (2, 1, 16, 40), (1, 3, 64, 48)])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_odd_shapes_change_but_keep_their_range_of_values(name, shape):
    # Mid-grey with a dark and a light half: a wrong scale or a clipped sign would drive it to black or white.
    images = torch.full(shape, 100, dtype=torch.uint8)
    images[..., shape[-1] // 2 :] = 160
    out = corrupt(images, name, 3)
    assert out.shape == images.shape
    if len(out):
        assert 60 < out.double().mean() < 220


# The affine part of elastic_transform shrinks while its waves grow; saturate first takes colour away, then adds it;
# frost, fog and spatter also lower the image's own weight or change from water to mud; glass changes two numbers.
UNORDERED = ("elastic_transform", "saturate", "frost", "fog", "spatter", "glass_blur")


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name not in UNORDERED])
def test_the_difference_grows_with_severity(name):
    images = smooth(n=40)
    change = [(corrupt(images, name, k).double() - images.double()).abs().mean() for k in range(1, 6)]
    assert all(low < high for low, high in zip(change, change[1:], strict=False)), change


@pytest.mark.parametrize("name", UNORDERED)
def test_every_severity_of_the_others_changes_the_images(name):
    images = smooth(n=40)
    for severity in range(1, 6):
        assert (corrupt(images, name, severity).double() - images.double()).abs().mean() > 0.5


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if CORRUPTIONS[name].category != "noise"])
@pytest.mark.parametrize("side", [8, 32])
def test_a_grey_image_is_the_luma_of_three_equal_channels(name, side):
    grey = smooth(n=3, channels=1, side=side) // 4 + 20  # dark enough that colour is not clipped
    severity = 2 if name in ("frost", "spatter") else 5
    of_grey = corrupt(grey, name, severity).double()
    of_colour = luma(corrupt(grey.repeat(1, 3, 1, 1), name, severity))
    # JPEG rounds luma and colours apart; some of frost's blue is clipped.
    assert (of_grey - of_colour).abs().max() <= (3 if name in ("jpeg_compression", "frost") else 1)


def test_values_are_truncated_and_whole_levels_kept():
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    out = corrupt(ramp, "contrast", 2)  # 127.5 + (x − 127.5) / 2 = x / 2 + 63.75
    assert torch.equal(out, (ramp.double() / 2 + 63.75).floor().to(torch.uint8))
    assert torch.equal(corrupt(ramp, "saturate", 3), ramp)


def test_an_unknown_name_is_answered_with_near_ones():
    images = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match="unknown corruption 'gausian_noise': choose one of gaussian_noise"):
        corrupt(images, "gausian_noise", 1)
    with pytest.raises(ValueError, match="choose one of gaussian_noise, shot_noise, .*, saturate"):
        corrupt(images, "qqq", 1)


@pytest.mark.parametrize("severity", [0, 6, -1, 2.5])
def test_another_severity_is_refused(severity):
    with pytest.raises(ValueError, match="severity must be an integer from 1 to 5, got"):
        corrupt(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), "fog", severity)


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(1, 3, 8, 8),
        torch.zeros(3, 8, 8, dtype=torch.uint8),
        torch.zeros(1, 4, 8, 8, dtype=torch.uint8),
    ],
)
def test_other_images_are_refused(images):
    with pytest.raises(ValueError, match="images must be uint8 .* with 1 or 3 channels, got"):
        corrupt(images, "fog", 1)
