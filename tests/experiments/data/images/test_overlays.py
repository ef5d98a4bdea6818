"""Snow, frost, fog and splashes: closed forms, and the loops of the original programs."""

import numpy as np
import pytest
from scipy import ndimage

from probattn.experiments.data.images import overlays
from probattn.experiments.data.images.corruptions import CORRUPTIONS
from probattn.experiments.data.images.pixelwise import luma


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def images(rng):
    return rng.random((4, 3, 32, 32)).astype(np.float32)


def test_snow_without_flakes_only_whitens(images, rng):
    out = overlays.snow(images, rng, 0.1, 0.0, 1, 0.6, 8, 3, 0.9)
    grey = 0.299 * images[:, :1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:]
    assert np.allclose(out, 0.9 * images + 0.1 * np.maximum(images, 1.5 * grey + 0.5), atol=1e-5)


def test_snow_of_one_flake_everywhere_adds_it_twice(images, rng):
    without = overlays.snow(images, rng, 0.1, 0.0, 1, 0.6, 8, 3, 0.9)
    out = overlays.snow(images, rng, 0.7, 0.0, 1.75, 0.6, 8, 3, 0.9)
    assert np.allclose(out - without, 1.4, atol=1e-5)
    assert np.allclose(overlays.snow(images, rng, 5.0, 0.0, 1, 0.6, 8, 3, 0.9) - without, 2, atol=1e-5)


def test_flakes_fall_and_mirror_each_other(rng):
    black = np.zeros((40, 3, 32, 32), dtype=np.float32)
    flakes = overlays.snow(black, rng, 0.3, 0.3, 1.25, 0.65, 14, 12, 0.8)
    assert np.allclose(flakes, flakes[..., ::-1, ::-1], atol=1e-6)
    assert np.allclose(flakes[:, 0], flakes[:, 2], atol=1e-6)
    change_down = np.abs(np.diff(flakes, axis=2)).mean()
    change_right = np.abs(np.diff(flakes, axis=3)).mean()
    assert change_down < 0.8 * change_right
    assert flakes.min() >= 0.1 - 1e-6  # 0.2 of the whitening's 0.5


def test_fog_is_a_plasma_under_the_same_ceiling(images):
    out = overlays.fog(images, np.random.default_rng(3), 0.75, 2.5)
    haze = overlays.plasma(4, 2.5, np.random.default_rng(3))
    for image, layer, result in zip(images, haze, out, strict=True):
        expected = (image + 0.75 * layer) * image.max() / (image.max() + 0.75)
        assert np.allclose(result, expected, atol=1e-5)
    assert (overlays.fog(0 * images, np.random.default_rng(3), 1, 2) == 0).all()


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
    out = overlays.plasma(n, decay, np.random.default_rng(7))
    assert np.allclose(out[:, 0], expected, atol=1e-6)


def test_frost_has_the_photographs_level_contrast_and_colour(rng):
    black = np.zeros((300, 3, 32, 32), dtype=np.float32)
    ice = overlays.frost(black, rng, 1, 1)
    grey = luma(ice)
    levels = grey.mean(axis=(1, 2, 3))
    assert 0.4 < levels.min() < 0.5
    assert 0.76 < levels.max() < 0.86
    assert grey.std(axis=(1, 2, 3)).mean() == pytest.approx(0.085, abs=0.008)
    red, _, blue = ice.mean(axis=(0, 2, 3))
    assert 1.1 < blue / red < 1.3


def test_frost_is_the_same_ice_at_every_strength(images):
    black = np.zeros_like(images)
    ice = overlays.frost(black, np.random.default_rng(2), 1, 1)
    out = overlays.frost(images, np.random.default_rng(2), 0.75, 0.45)
    assert np.allclose(out, 0.75 * images + 0.45 * ice, atol=1e-5)


def canny(image, low=50, high=150):
    """Canny's edges of one image, pixel by pixel."""
    height, width = image.shape

    def at(y, x):
        return image[min(max(y, 0), height - 1), min(max(x, 0), width - 1)]

    right, down = np.zeros(image.shape), np.zeros(image.shape)
    for y in range(height):
        for x in range(width):
            for k, weight in ((-1, 1), (0, 2), (1, 1)):
                right[y, x] += weight * (at(y + k, x + 1) - at(y + k, x - 1))
                down[y, x] += weight * (at(y + 1, x + k) - at(y - 1, x + k))
    slope = np.abs(right) + np.abs(down)

    def steepness(y, x):
        return slope[y, x] if 0 <= y < height and 0 <= x < width else 0

    top = np.zeros(image.shape, dtype=bool)
    for y in range(height):
        for x in range(width):
            gx, gy, here = right[y, x], down[y, x], slope[y, x]
            angle = np.degrees(np.arctan2(abs(gy), abs(gx)))
            if angle < 22.5:
                top[y, x] = here > steepness(y, x - 1) and here >= steepness(y, x + 1)
            elif angle > 67.5:
                top[y, x] = here > steepness(y - 1, x) and here >= steepness(y + 1, x)
            else:
                sign = -1 if gx * gy < 0 else 1
                top[y, x] = here > steepness(y - 1, x - sign) and here > steepness(y + 1, x + sign)
    edges = top & (slope > high)
    stack = list(zip(*np.nonzero(edges), strict=True))
    while stack:
        y, x = stack.pop()
        for v in range(max(y - 1, 0), min(y + 2, height)):
            for u in range(max(x - 1, 0), min(x + 2, width)):
                if top[v, u] and slope[v, u] > low and not edges[v, u]:
                    edges[v, u] = True
                    stack.append((v, u))
    return edges


def test_rims_are_cannys_edges(rng):
    # Steps at the size of drops, and a faint texture between the two thresholds.
    coarse = np.kron(rng.integers(0, 2, (20, 4, 4)), np.ones((1, 4, 4)))
    levels = np.floor(coarse * (190 + 12 * rng.standard_normal((20, 16, 16))) + 6 * rng.random((20, 16, 16)))
    found = overlays.canny_edges(levels)
    assert found.any()
    assert np.array_equal(found, np.stack([canny(image) for image in levels]))


def test_equalised_is_opencvs(rng):
    images = rng.integers(0, 21, (5, 9, 9))
    images[4] = 7
    for image, result in zip(images, overlays.equalize_histogram(images), strict=True):
        present = sorted(set(image.ravel()))
        rest = image.size - (image == present[0]).sum()
        for level in present:
            above = sum((image == other).sum() for other in present[1:] if other <= level)
            assert (result[image == level] == np.rint(255 * above / max(rest, 1))).all()


def shine(levels):
    """Highlights of the drops of one image, step by step."""
    edges = np.argwhere(canny(levels))
    places = np.stack(np.mgrid[:32, :32], axis=-1)
    depth = np.sqrt(((places[:, :, None] - edges) ** 2).sum(axis=-1)).min(axis=-1).clip(max=20)
    box = np.ones((3, 3)) / 9
    depth = np.floor(ndimage.convolve(depth, box, mode="mirror") + 1e-6).astype(int)
    relief = np.pad(overlays.equalize_histogram(depth[None])[0], 1, mode="reflect")
    embossed = sum(
        weight * relief[1 + dy : 33 + dy, 1 + dx : 33 + dx]
        for dy, row in zip((-1, 0, 1), ((-2, -1, 0), (-1, 1, 1), (0, 1, 2)), strict=True)
        for dx, weight in zip((-1, 0, 1), row, strict=True)
    ).clip(0, 255)
    light = levels * np.rint(ndimage.convolve(embossed, box, mode="mirror"))
    return light / light.max()


def test_water_shines_by_the_depth_of_its_drops():
    black = np.zeros((4, 1, 32, 32), dtype=np.float32)
    out = overlays.spatter(black, np.random.default_rng(9), 0.65, 0.1, 0.8, 0.7, 0.5, False)
    noise = np.random.default_rng(9).normal(0.65, 0.1, size=(4, 1, 32, 32)).astype(np.float32)
    colour = 0.299 * overlays.WATER[0] + 0.587 * overlays.WATER[1] + 0.114 * overlays.WATER[2]
    for layer, result in zip(noise[:, 0], out[:, 0], strict=True):
        liquid = ndimage.gaussian_filter(layer, 0.8, mode="nearest")
        levels = np.floor(255 * np.where(liquid < 0.7, 0, liquid))
        assert np.allclose(result, 0.5 * colour * shine(levels), atol=1e-5)


def test_water_only_adds_its_colour_up_to_the_strength(images, rng):
    added = overlays.spatter(images, rng, 0.65, 0.3, 1, 0.69, 0.5, False) - images
    amount = added / np.array(overlays.WATER, dtype=np.float32)[:, None, None]
    assert np.allclose(amount, amount[:, :1], atol=1e-5)
    assert amount.min() > -1e-5
    assert np.allclose(amount.max(axis=(1, 2, 3)), 0.5, atol=1e-5)
    wet = (amount[:, 0] > 1e-5).mean()
    assert 0.05 < wet < 0.5  # P(N(0.65, 0.3 / (2 √π)) > 0.69) = 0.32, and some of it does not shine


def test_mud_covers(images, rng):
    *numbers, mud = CORRUPTIONS["spatter"].severities[4]
    out = overlays.spatter(images, rng, *numbers, mud)
    cover = (out - images) / (np.array(overlays.MUD, dtype=np.float32)[:, None, None] - images)
    for image in cover:
        known = np.abs(image) > 1e-4
        assert image[known].min() > 0.8 - 1e-3
        assert image.max() < 1 + 1e-3
    assert 0 < (out != images).mean() < 0.5
    everywhere = overlays.spatter(images, rng, 0.8, 0.0, 0.7, 0.69, 0.6, True)
    assert np.allclose(everywhere, np.array(overlays.MUD)[:, None, None], atol=1e-6)
