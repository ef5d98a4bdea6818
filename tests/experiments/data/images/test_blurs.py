"""Blurs and the elastic transform agree with SciPy, ImageMagick's formula and the loops of CIFAR-C's program."""

import math

import numpy as np
import pytest
from scipy import ndimage

from probattn.experiments.data.images import blurs
from probattn.experiments.data.images.corruptions import PARAMETERS


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def images(rng):
    return rng.random((3, 2, 32, 32)).astype(np.float32)


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
    radius, alias = PARAMETERS["defocus_blur"][severity - 1]
    rim = np.outer(weights_of_three(alias), weights_of_three(alias))
    kernel = ndimage.convolve(np.pad(DISKS[severity], 3), rim, mode="constant")
    expected = by_plane(images, lambda plane: ndimage.convolve(plane.astype(float), kernel, mode="mirror"))
    assert np.allclose(blurs.defocus_blur(images, rng, radius, alias), expected, atol=1e-5)


def test_glass_is_what_the_original_loop_does(images):
    sigma, delta, iterations = 0.4, 1, 2
    out = blurs.glass_blur(images, np.random.default_rng(1), sigma, iterations)

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


def test_glass_scales_its_delta():
    images = np.arange(96 * 96, dtype=np.float32).reshape(1, 1, 96, 96)
    rows, columns = np.divmod(blurs.glass_blur(images, np.random.default_rng(0), 0, 1)[0, 0].astype(int), 96)
    down, right = rows - np.arange(96)[:, None], columns - np.arange(96)
    assert set(down.ravel()) == set(right.ravel()) == {-3, -2, -1, 0, 1, 2}


def test_motion_blur_is_imagemagicks(rng):
    radius, sigma, n = 9, 2.5, 12
    images = rng.random((n, 1, 32, 32)).astype(np.float32)
    out = blurs.motion_blur(images, np.random.default_rng(5), radius, sigma)
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

    assert np.allclose(blurs.zoom_blur(images, rng, end), by_plane(images, blurred), atol=1e-5)


@pytest.mark.parametrize(("side", "width"), [(32, 32), (64, 64), (32, 64), (64, 96)])
def test_gaussian_blur_scales_with_the_shorter_side(rng, side, width):
    images = rng.random((2, 3, side, width)).astype(np.float32)
    expected = by_plane(
        images, lambda plane: ndimage.gaussian_filter(plane.astype(float), 0.7 * side / 32, mode="nearest")
    )
    assert np.allclose(blurs.gaussian_blur(images, 0.7), expected, atol=1e-5)


def test_elastic_transform_of_nothing_is_the_image(images, rng):
    assert np.allclose(blurs.elastic_transform(images, rng, 0, 0.1, 0), images, atol=1e-4)


def test_elastic_transform_moves_three_corners(images):
    jitter = 0.08
    out = blurs.elastic_transform(images, np.random.default_rng(4), 0, 0, jitter)
    moves = np.random.default_rng(4).uniform(-32 * jitter, 32 * jitter, size=(3, 3, 2))
    corners = np.array([[26, 26], [26, 6], [6, 6]])
    for image, result, move in zip(images, out, moves, strict=True):
        # x' = A x + b for the three corners: six equations.
        system = np.concatenate([corners, np.ones((3, 1))], axis=1)
        solution = np.linalg.solve(system, corners + move)
        matrix, offset = solution[:2].T, solution[2]
        y, x = np.mgrid[:32, :32]
        source = np.einsum("ij,jyx->iyx", np.linalg.inv(matrix), np.stack([x, y]) - offset[:, None, None])
        for plane, got in zip(image.astype(float), result, strict=True):
            expected = ndimage.map_coordinates(plane, [source[1], source[0]], order=1, mode="mirror")
            assert np.allclose(got, expected, atol=1e-3)


def test_elastic_transform_moves_pixels_by_blurred_noise(images):
    amplitude, sigma = 0.1, 0.04
    out = blurs.elastic_transform(images, np.random.default_rng(4), amplitude, sigma, 0)
    rng = np.random.default_rng(4)
    rng.uniform(size=(3, 3, 2))
    noise = rng.uniform(-1, 1, size=(3, 2, 32, 32))
    for image, result, layers in zip(images, out, noise, strict=True):
        right, down = (
            32 * amplitude * ndimage.gaussian_filter(layer, 32 * sigma, mode="reflect", truncate=3) for layer in layers
        )
        y, x = np.mgrid[:32, :32]
        for plane, got in zip(image.astype(float), result, strict=True):
            expected = ndimage.map_coordinates(plane, [y + down, x + right], order=1, mode="reflect")
            assert np.allclose(got, expected, atol=1e-3)


def test_take_pixels_repeats_the_border():
    fields = np.arange(12.0).reshape(1, 1, 3, 4)
    rows, columns = np.array([[[-2], [1], [7]]]), np.array([[[3, -1, 9, 0]]])
    assert blurs.take_pixels(fields, rows, columns)[0, 0].tolist() == [[3, 0, 3, 0], [7, 4, 7, 4], [11, 8, 11, 8]]


def test_motion_blur_averages_the_pixels_in_its_direction():
    fields = np.zeros((4, 1, 9, 9), dtype=np.float32)
    fields[:, 0, 4, 4] = 1
    out = blurs.blur_along(fields, 2, 1.0, np.array([0.0, 90.0, 180.0, -90.0]))[:, 0]
    weights = np.exp(-0.5 * np.arange(5) ** 2)
    weights /= weights.sum()
    lines = [out[0, 4, 4::-1], out[1, 4::-1, 4], out[2, 4, 4:], out[3, 4:, 4]]
    assert np.allclose(lines, weights, atol=1e-6)
    assert np.allclose(out.sum(axis=(1, 2)), 1, atol=1e-6)
