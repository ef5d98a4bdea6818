"""Snow, frost and fog: closed forms, and the loops of the original programs."""

import numpy as np
import pytest

from probattn.experiments.data.images import pixelwise
from probattn.experiments.data.images.pixelwise import luma


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def images(rng):
    return rng.random((4, 3, 32, 32)).astype(np.float32)


def test_snow_without_flakes_only_whitens(images, rng):
    out = pixelwise.snow(images, rng, 0.1, 0.0, 1, 0.6, 8, 3, 0.9)
    grey = 0.299 * images[:, :1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:]
    assert np.allclose(out, 0.9 * images + 0.1 * np.maximum(images, 1.5 * grey + 0.5), atol=1e-5)


def test_snow_of_one_flake_everywhere_adds_it_twice(images, rng):
    without = pixelwise.snow(images, rng, 0.1, 0.0, 1, 0.6, 8, 3, 0.9)
    out = pixelwise.snow(images, rng, 0.7, 0.0, 1.75, 0.6, 8, 3, 0.9)
    assert np.allclose(out - without, 1.4, atol=1e-5)
    assert np.allclose(pixelwise.snow(images, rng, 5.0, 0.0, 1, 0.6, 8, 3, 0.9) - without, 2, atol=1e-5)


def test_flakes_fall_and_mirror_each_other(rng):
    black = np.zeros((40, 3, 32, 32), dtype=np.float32)
    flakes = pixelwise.snow(black, rng, 0.3, 0.3, 1.25, 0.65, 14, 12, 0.8)
    assert np.allclose(flakes, flakes[..., ::-1, ::-1], atol=1e-6)
    assert np.allclose(flakes[:, 0], flakes[:, 2], atol=1e-6)
    change_down = np.abs(np.diff(flakes, axis=2)).mean()
    change_right = np.abs(np.diff(flakes, axis=3)).mean()
    assert change_down < 0.8 * change_right
    assert flakes.min() >= 0.1 - 1e-6  # 0.2 of the whitening's 0.5


def test_fog_is_a_plasma_under_the_same_ceiling(images):
    out = pixelwise.fog(images, np.random.default_rng(3), 0.75, 2.5)
    haze = pixelwise.plasma(4, 2.5, np.random.default_rng(3))
    for image, layer, result in zip(images, haze, out, strict=True):
        expected = (image + 0.75 * layer) * image.max() / (image.max() + 0.75)
        assert np.allclose(result, expected, atol=1e-5)
    assert (pixelwise.fog(0 * images, np.random.default_rng(3), 1, 2) == 0).all()


def test_plasma_is_the_diamond_square_algorithm():
    n, side, decay = 2, 32, 1.75
    rng = np.random.default_rng(7)
    field = np.zeros((n, side, side))
    step, wibble = side, 100.0
    while step >= 2:
        half = step // 2
        spots = [
            (half, half, [(-half, -half), (-half, half), (half, -half), (half, half)]),
            (0, half, [(-half, 0), (half, 0), (0, -half), (0, half)]),
            (half, 0, [(-half, 0), (half, 0), (0, -half), (0, half)]),
        ]
        for row, column, around in spots:
            noise = rng.uniform(-1, 1, (n, side // step, side // step))
            for y in range(row, side, step):
                for x in range(column, side, step):
                    mean = sum(field[:, (y + dy) % side, (x + dx) % side] for dy, dx in around) / 4
                    field[:, y, x] = mean + wibble**2 * noise[:, y // step, x // step]
        step, wibble = half, wibble / decay
    low, high = (part(field, axis=(1, 2), keepdims=True) for part in (np.min, np.max))
    expected = (field - low) / (high - low)
    out = pixelwise.plasma(n, decay, np.random.default_rng(7))
    assert np.allclose(out[:, 0], expected, atol=1e-6)


def test_frost_has_the_photographs_level_contrast_and_colour(rng):
    black = np.zeros((300, 3, 32, 32), dtype=np.float32)
    ice = pixelwise.frost(black, rng, 1, 1)
    grey = luma(ice)
    levels = grey.mean(axis=(1, 2, 3))
    assert 0.4 < levels.min() < 0.5
    assert 0.76 < levels.max() < 0.86
    assert grey.std(axis=(1, 2, 3)).mean() == pytest.approx(0.085, abs=0.008)
    red, _, blue = ice.mean(axis=(0, 2, 3))
    assert 1.1 < blue / red < 1.3


def test_frost_is_the_same_ice_at_every_strength(images):
    black = np.zeros_like(images)
    ice = pixelwise.frost(black, np.random.default_rng(2), 1, 1)
    out = pixelwise.frost(images, np.random.default_rng(2), 0.75, 0.45)
    assert np.allclose(out, 0.75 * images + 0.45 * ice, atol=1e-5)
