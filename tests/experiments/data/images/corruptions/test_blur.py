import math

import numpy as np
import pytest
from scipy import ndimage

from probattn.experiments.data.images.corruptions import blur
from probattn.experiments.data.images.corruptions.registry import CORRUPTIONS


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def images(rng):
    return rng.random((3, 2, 32, 32)).astype(np.float32)


def enlarged(images, times=4):
    return np.kron(images, np.ones((1, 1, times, times), np.float32))


def averaged(images, times=4):
    n, channels, height, width = images.shape
    return images.reshape(n, channels, height // times, times, width // times, times).mean((3, 5))


def by_plane(images, function):
    return np.stack([[function(plane) for plane in image] for image in images])


def weights_of_three(sigma):
    side = math.exp(-1 / (2 * sigma**2))
    return np.array([side, 1, side]) / (1 + 2 * side)


PLUS = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]]) / 5
DISKS = {1: np.ones((1, 1)), 2: np.ones((1, 1)), 3: np.ones((1, 1)), 4: PLUS, 5: np.ones((3, 3)) / 9}
"""The pixels within 0.3, 0.4, 0.5, 1 and 1.5 pixels of the middle, in equal shares."""


@pytest.mark.parametrize("severity", DISKS)
def test_defocus_is_an_aliased_disk_smoothed_by_three_pixels(images, rng, severity):
    radius, alias = CORRUPTIONS["defocus_blur"].severities[severity - 1]
    rim = np.outer(weights_of_three(alias), weights_of_three(alias))
    kernel = ndimage.convolve(np.pad(DISKS[severity], 3), rim, mode="constant")
    expected = by_plane(images, lambda plane: ndimage.convolve(plane.astype(float), kernel, mode="mirror"))
    assert np.allclose(blur.defocus_blur(images, rng, radius, alias), expected, atol=1e-5)


@pytest.mark.parametrize(("radius", "alias", "rim"), [(0.3, 0.4, 1), (1.5, 0.1, 1), (3.2, 1.2, 2), (10, 1, 1)])
def test_a_disk_sums_to_one_is_symmetric_and_ends(radius, alias, rim):
    kernel = blur.disk(radius, alias, rim=rim)
    assert len(kernel) == 2 * (int(radius) + rim) + 1
    assert kernel.sum() == pytest.approx(1, abs=1e-6)
    for other in (kernel.T, kernel[::-1], kernel[:, ::-1]):
        assert np.allclose(kernel, other, atol=1e-7)


def test_glass_is_what_the_original_loop_does(images):
    sigma, delta, iterations = 0.4, 1, 2
    out = blur.glass_blur(images, np.random.default_rng(1), sigma, delta, iterations)

    rng = np.random.default_rng(1)
    moves = [rng.integers(-delta, delta, size=(2, 3, 32, 32)) for _ in range(iterations)]
    for number, image in enumerate(images):
        pixels = (
            ndimage.gaussian_filter(image.astype(float), (0, sigma, sigma), mode="nearest").transpose(1, 2, 0).copy()
        )
        for down, right in moves:
            for h in range(32 - delta, delta, -1):
                for w in range(32 - delta, delta, -1):
                    other = h + down[number, h, w], w + right[number, h, w]
                    # NumPy's views make this swap of CIFAR-C's program a copy.
                    pixels[h, w], pixels[other] = pixels[other], pixels[h, w]
        expected = ndimage.gaussian_filter(pixels, (sigma, sigma, 0), mode="nearest").transpose(2, 0, 1)
        assert np.allclose(out[number], expected, atol=1e-5)


def test_glass_without_blur_only_moves_whole_pixels(images):
    out = blur.glass_blur(images, np.random.default_rng(0), 0.05, 1, 1)
    neighbours = [np.roll(images, shift, axis=(2, 3)) for shift in ((0, 0), (1, 0), (0, 1), (1, 1))]
    came = np.stack([(out == other).all(axis=1) for other in neighbours])
    assert came.any(axis=0).all()
    assert came[0, :, :2].all()
    assert came[0, :, :, :2].all()
    assert np.allclose(came[:, :, 2:, 2:].mean(axis=(1, 2, 3)), 0.25, atol=0.05)


def test_glass_scales_its_delta():
    images = np.arange(96 * 96, dtype=np.float32).reshape(1, 1, 96, 96)
    rows, columns = np.divmod(blur.glass_blur(images, np.random.default_rng(0), 0, 1, 1)[0, 0].astype(int), 96)
    down, right = rows - np.arange(96)[:, None], columns - np.arange(96)
    assert set(down.ravel()) == set(right.ravel()) == {-3, -2, -1, 0, 1, 2}


def test_motion_blur_is_imagemagicks(rng):
    radius, sigma, n = 9, 2.5, 12
    images = rng.random((n, 1, 32, 32)).astype(np.float32)
    out = blur.motion_blur(images, np.random.default_rng(5), radius, sigma)
    angles = np.random.default_rng(5).uniform(-45, 45, size=n)
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(19)]
    for image, result, angle in zip(images[:, 0], out[:, 0], angles, strict=True):
        expected = np.zeros((32, 32))
        for y in range(0, 32, 5):
            for x in range(0, 32, 5):
                for i, weight in enumerate(weights):
                    right = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
                    down = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
                    source = image[min(max(y + down, 0), 31), min(max(x + right, 0), 31)]
                    expected[y, x] += weight / sum(weights) * source
        assert np.allclose(result[::5, ::5], expected[::5, ::5], atol=1e-5)


@pytest.mark.parametrize(("end", "count"), [(1.06, 7), (1.11, 12), (1.16, 16), (1.21, 21), (1.26, 26)])
def test_zoom_blur_averages_scipys_zooms(images, rng, end, count):
    assert len(np.arange(1, end, 0.01)) == count

    def blurred(plane):
        total = np.zeros((32, 32))
        for factor in np.arange(1, end, 0.01):
            crop = math.ceil(32 / factor)
            top = (32 - crop) // 2
            large = ndimage.zoom(plane[top : top + crop, top : top + crop].astype(float), factor, order=1)
            trim = (len(large) - 32) // 2
            total += large[trim : trim + 32, trim : trim + 32]
        return (plane + total) / (count + 1)

    assert np.allclose(blur.zoom_blur(images, rng, end), by_plane(images, blurred), atol=1e-5)


@pytest.mark.parametrize(("side", "width"), [(32, 32), (64, 64), (32, 64), (64, 96)])
def test_gaussian_blur_scales_with_the_shorter_side(rng, side, width):
    images = rng.random((2, 3, side, width)).astype(np.float32)
    expected = by_plane(
        images, lambda plane: ndimage.gaussian_filter(plane.astype(float), 0.7 * side / 32, mode="nearest")
    )
    assert np.allclose(blur.gaussian_blur(images, rng, 0.7), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"])
def test_small_images_are_blurred_at_32_pixels(name):
    small = np.random.default_rng(0).random((4, 1, 8, 8)).astype(np.float32)
    corruption = CORRUPTIONS[name]
    out = corruption.function(small, np.random.default_rng(1), *corruption.severities[4])
    large = corruption.function(enlarged(small), np.random.default_rng(1), *corruption.severities[4])
    assert np.allclose(out, averaged(large), atol=1e-6)
    assert np.abs(out - small).mean() > 0.02  # CIFAR-C's strongest blur is one on digits too
