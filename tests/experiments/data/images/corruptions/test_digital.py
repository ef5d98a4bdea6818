import colorsys
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from probattn.experiments.data.images.corruptions import digital


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def images(rng):
    return np.float32(rng.integers(0, 256, (3, 3, 32, 32)) / 255)


def test_contrast_keeps_the_mean_of_each_channel(images, rng):
    out = digital.contrast(images, rng, 0.15)
    for image, result in zip(images, out, strict=True):
        for before, after in zip(image.astype(float), result, strict=True):
            assert np.allclose(after, before.mean() + 0.15 * (before - before.mean()), atol=1e-6)


@pytest.mark.parametrize(("factor", "shift"), [(0.1, 0), (1.5, 0), (2.5, 0.2)])
def test_saturate_changes_the_saturation_of_hsv(images, rng, factor, shift):
    images = images[:1, :, :8, :8]
    images[0, :, 0, 0] = 0
    images[0, :, 0, 1] = 0.5  # no hue: that of red
    images[0, :, 0, 2] = (1, 0, 0.2)
    out = digital.saturate(images, rng, factor, shift)
    for y in range(8):
        for x in range(8):
            hue, saturation, value = colorsys.rgb_to_hsv(*images[0, :, y, x].tolist())
            expected = colorsys.hsv_to_rgb(hue, min(max(saturation * factor + shift, 0), 1), value)
            assert out[0, :, y, x].tolist() == pytest.approx(expected, abs=1e-5)


def test_pixelate_averages_blocks(images, rng):
    out = 255 * digital.pixelate(images, rng, 0.5)
    blocks = 255 * images.reshape(3, 3, 16, 2, 16, 2).mean(axis=(3, 5))
    assert np.abs(out - np.kron(blocks, np.ones((2, 2)))).max() < 1.01


@pytest.mark.parametrize(("share", "side", "left"), [(0.65, 32, 20), (0.95, 32, 30), (0.65, 8, 5), (0.65, 1, 1)])
def test_pixelate_leaves_a_share_of_the_rows_and_columns(rng, share, side, left):
    images = rng.random((1, 1, side, side)).astype(np.float32)
    out = digital.pixelate(images, rng, share)[0, 0]
    assert len(np.unique(out, axis=0)) == len(np.unique(out, axis=1).T) == left


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("quality", [80, 40])
def test_jpeg_is_pillows(images, rng, quality, channels):
    images = images[:, :channels]
    out = digital.jpeg_compression(images, rng, quality)
    for image, result in zip(images, out, strict=True):
        pixels = np.uint8(np.rint(255 * image.transpose(1, 2, 0)))
        buffer = BytesIO()
        Image.fromarray(pixels.squeeze()).save(buffer, "JPEG", quality=quality)
        expected = np.asarray(Image.open(buffer)).reshape(32, 32, channels)
        assert np.array_equal(np.rint(255 * result).transpose(1, 2, 0), expected)


def test_elastic_transform_of_nothing_is_the_image(images, rng):
    assert np.allclose(digital.elastic_transform(images, rng, 0, 0.1, 0), images, atol=1e-4)


def test_elastic_transform_moves_three_corners(images):
    jitter = 0.08
    out = digital.elastic_transform(images, np.random.default_rng(4), 0, 0, jitter)
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
    out = digital.elastic_transform(images, np.random.default_rng(4), amplitude, sigma, 0)
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


@pytest.mark.parametrize("side", [64, 96])
def test_elastic_transform_bends_a_larger_image_alike(side):
    """A smooth image that is `side / 32` times as large comes out as that much larger."""
    smooth = np.sin(np.linspace(0, 4, 32, dtype=np.float32))
    small = np.outer(smooth, smooth)[None, None]
    factor = side // 32
    large = ndimage.zoom(small, (1, 1, factor, factor), order=1, grid_mode=True, mode="nearest")
    bent = digital.elastic_transform(small, np.random.default_rng(1), 0.1, 0.04, 0)
    as_large = digital.elastic_transform(large, np.random.default_rng(1), 0.1, 0.04, 0)
    averaged = as_large.reshape(1, 1, 32, factor, 32, factor).mean(axis=(3, 5))
    inner = (..., slice(2, -2), slice(2, -2))
    assert np.abs(averaged - bent)[inner].max() < 0.25 * np.abs(bent - small)[inner].max()
