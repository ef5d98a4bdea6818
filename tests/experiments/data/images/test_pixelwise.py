"""Noise, colours, pixelation and JPEG: their statistics, and colorsys and Pillow as references."""

import colorsys
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from probattn.experiments.data.images import pixelwise


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def images(rng):
    return np.float32(rng.integers(0, 256, (3, 3, 32, 32)) / 255)


def test_contrast_keeps_the_mean_of_each_channel(images, rng):
    out = pixelwise.contrast(images, rng, 0.15)
    for image, result in zip(images, out, strict=True):
        for before, after in zip(image.astype(float), result, strict=True):
            assert np.allclose(after, before.mean() + 0.15 * (before - before.mean()), atol=1e-6)


def test_pixelate_averages_blocks(images, rng):
    out = 255 * pixelwise.pixelate(images, rng, 0.5)
    blocks = 255 * images.reshape(3, 3, 16, 2, 16, 2).mean(axis=(3, 5))
    assert np.abs(out - np.kron(blocks, np.ones((2, 2)))).max() < 1.01


@pytest.mark.parametrize(("share", "side", "left"), [(0.65, 32, 20), (0.95, 32, 30), (0.65, 8, 5), (0.65, 1, 1)])
def test_pixelate_leaves_a_share_of_the_rows_and_columns(rng, share, side, left):
    images = rng.random((1, 1, side, side)).astype(np.float32)
    out = pixelwise.pixelate(images, rng, share)[0, 0]
    assert len(np.unique(out, axis=0)) == len(np.unique(out, axis=1).T) == left


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("quality", [80, 40])
def test_jpeg_is_pillows(images, rng, quality, channels):
    images = images[:, :channels]
    out = pixelwise.jpeg_compression(images, rng, quality)
    for image, result in zip(images, out, strict=True):
        pixels = np.uint8(np.rint(255 * image.transpose(1, 2, 0)))
        buffer = BytesIO()
        Image.fromarray(pixels.squeeze()).save(buffer, "JPEG", quality=quality)
        expected = np.asarray(Image.open(buffer)).reshape(32, 32, channels)
        assert np.array_equal(np.rint(255 * result).transpose(1, 2, 0), expected)


def flat(value, n=40):
    return np.full((n, 3, 32, 32), value, dtype=np.float32)


def test_gaussian_noise_is_normal_and_independent(rng):
    noise = pixelwise.gaussian_noise(flat(0.3), rng, 0.08) - 0.3
    assert noise.dtype == np.float32
    assert noise.mean() == pytest.approx(0, abs=1e-3)
    assert noise.std() == pytest.approx(0.08, rel=0.01)
    assert (np.abs(noise) < 0.08).mean() == pytest.approx(0.6827, abs=0.005)
    channels = np.corrcoef(noise.transpose(1, 0, 2, 3).reshape(3, -1))
    assert np.abs(channels - np.eye(3)).max() < 0.02
    assert abs(np.corrcoef(noise[..., 1:].ravel(), noise[..., :-1].ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("value", [0.1, 0.6, 1.0])
@pytest.mark.parametrize("photons", [500, 50])
def test_shot_noise_counts_photons(rng, value, photons):
    out = pixelwise.shot_noise(flat(value), rng, photons)
    assert out.mean() == pytest.approx(value, rel=0.01)
    assert out.var() == pytest.approx(value / photons, rel=0.03)
    assert np.allclose(out * photons, np.rint(out * photons), atol=1e-3)


def test_impulse_noise_sets_a_share_to_black_or_white(rng):
    out = pixelwise.impulse_noise(flat(0.4), rng, 0.07)
    n = out.size
    margin = 4 * np.sqrt(0.035 * 0.965 / n)
    assert (out == 0).mean() == pytest.approx(0.035, abs=margin)
    assert (out == 1).mean() == pytest.approx(0.035, abs=margin)
    assert (out == np.float32(0.4)).mean() == pytest.approx(0.93, abs=2 * margin)


def test_luma_is_pillows():
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    ours = pixelwise.luma(pixels.transpose(2, 0, 1)[None].astype(np.float32))[0, 0]
    assert np.abs(ours - np.asarray(Image.fromarray(pixels).convert("L"))).max() <= 0.51


@pytest.mark.parametrize("amount", [0.05, 0.3])
def test_brightness_raises_the_value_of_hsv(rng, amount):
    images = rng.random((1, 3, 8, 8)).astype(np.float32)
    images[0, :, 0, 0] = 0
    images[0, :, 0, 1] = 0.5
    images[0, :, 0, 2] = (1, 0, 0.2)
    out = pixelwise.brightness(images, rng, amount)
    for y in range(8):
        for x in range(8):
            hue, saturation, value = colorsys.rgb_to_hsv(*images[0, :, y, x].tolist())
            expected = colorsys.hsv_to_rgb(hue, saturation, min(value + amount, 1))
            assert out[0, :, y, x].tolist() == pytest.approx(expected, abs=1e-5)
