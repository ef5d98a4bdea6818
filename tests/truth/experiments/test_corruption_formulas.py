"""Corruptions against SciPy, Pillow, colorsys, closed forms, and the loops of CIFAR-C's program."""

import colorsys
import math
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from probattn.experiments.data.images import blurs, pixelwise
from probattn.experiments.data.images.corruptions import PARAMETERS


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def images(rng):
    return np.float32(rng.integers(0, 256, (3, 3, 32, 32)) / 255)


def by_plane(images, function):
    return np.stack([[function(plane) for plane in image] for image in images])


def weights_of_three(sigma):
    side = math.exp(-1 / (2 * sigma**2))
    return np.array([side, 1, side]) / (1 + 2 * side)


DISKS = {severity: np.ones((1, 1)) for severity in (1, 2, 3)}
DISKS |= {4: np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]]) / 5, 5: np.ones((3, 3)) / 9}


@pytest.mark.parametrize("severity", DISKS)
def test_defocus_is_an_aliased_disk_smoothed_by_three_pixels(images, rng, severity):
    radius, alias = PARAMETERS["defocus_blur"][severity - 1]
    rim = np.outer(weights_of_three(alias), weights_of_three(alias))
    kernel = ndimage.convolve(np.pad(DISKS[severity], 3), rim, mode="constant")
    expected = by_plane(
        images, lambda plane: ndimage.convolve(plane.astype(float), kernel, mode="mirror")
    )
    assert np.allclose(blurs.defocus_blur(images, rng, radius, alias), expected, atol=1e-5)


def test_glass_is_what_the_original_loop_does(images):
    sigma, delta, iterations = 0.4, 1, 2
    out = blurs.glass_blur(images, np.random.default_rng(1), sigma, iterations)

    rng = np.random.default_rng(1)
    moves = [rng.integers(-delta, delta, size=(2, 3, 32, 32)) for _ in range(iterations)]
    for number, image in enumerate(images):
        pixels = ndimage.gaussian_filter(image.astype(float), (0, sigma, sigma), mode="nearest")
        pixels = pixels.transpose(1, 2, 0).copy()
        for down, right in moves:
            for h in range(32 - delta, delta, -1):
                for w in range(32 - delta, delta, -1):
                    other = h + down[number, h, w], w + right[number, h, w]
                    # NumPy's views make this swap of CIFAR-C's program a copy.
                    pixels[h, w], pixels[other] = pixels[other], pixels[h, w]
        expected = ndimage.gaussian_filter(pixels, (sigma, sigma, 0), mode="nearest").transpose(
            2, 0, 1
        )
        assert np.allclose(out[number], expected, atol=1e-5)


def test_motion_blur_is_imagemagicks(rng):
    radius, sigma, n = 9, 2.5, 12
    images = rng.random((n, 1, 32, 32)).astype(np.float32)
    out = blurs.motion_blur(images, np.random.default_rng(5), radius, sigma)
    angles = np.random.default_rng(5).uniform(-45, 45, size=n)
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(19)]
    for image, result, angle in zip(images[:, 0], out[:, 0], angles, strict=True):
        expected, place = np.zeros((32, 32)), np.arange(32)
        for i, weight in enumerate(weights):
            right, down = (
                math.ceil(i * f(math.radians(angle)) - 0.5) for f in (math.cos, math.sin)
            )
            source = image[(place + down).clip(0, 31)][:, (place + right).clip(0, 31)]
            expected += weight / sum(weights) * source
        assert np.allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize(("end", "count"), [(1.06, 7), (1.26, 26)])
def test_zoom_blur_averages_scipys_zooms(images, rng, end, count):
    assert len(np.arange(1, end, 0.01)) == count

    def blurred(plane):
        total = plane.astype(float)
        for factor in np.arange(1, end, 0.01):
            crop = math.ceil(32 / factor)
            inside = slice((32 - crop) // 2, (32 - crop) // 2 + crop)
            large = ndimage.zoom(plane[inside, inside].astype(float), factor, order=1)
            trim = (len(large) - 32) // 2
            total += large[trim : trim + 32, trim : trim + 32]
        return total / (count + 1)

    assert np.allclose(blurs.zoom_blur(images, rng, end), by_plane(images, blurred), atol=1e-5)


@pytest.mark.parametrize(("amplitude", "sigma", "jitter"), [(0, 0, 0.08), (0.1, 0.04, 0)])
def test_elastic_transform_moves_three_corners_and_pixels_by_blurred_noise(
    images, amplitude, sigma, jitter
):
    out = blurs.elastic_transform(images, np.random.default_rng(4), amplitude, sigma, jitter)
    rng = np.random.default_rng(4)
    moves = rng.uniform(-32 * jitter, 32 * jitter, size=(3, 3, 2))
    noise = rng.uniform(-1, 1, size=(3, 2, 32, 32))
    corners, place = np.array([[26, 26], [26, 6], [6, 6]]), np.mgrid[:32, :32][::-1]  # x, then y
    for image, result, move, layers in zip(images, out, moves, noise, strict=True):
        # x' = A x + b for the three corners: six equations.
        solution = np.linalg.solve(
            np.concatenate([corners, np.ones((3, 1))], axis=1), corners + move
        )
        source = np.einsum(
            "ij,jyx->iyx", np.linalg.inv(solution[:2].T), place - solution[2][:, None, None]
        )
        if amplitude:
            waves = [
                ndimage.gaussian_filter(layer, 32 * sigma, mode="reflect", truncate=3)
                for layer in layers
            ]
            source = source + 32 * amplitude * np.stack(waves)
        for plane, got in zip(image.astype(float), result, strict=True):
            mode = "reflect" if amplitude else "mirror"
            assert np.allclose(
                got, ndimage.map_coordinates(plane, source[::-1], order=1, mode=mode), atol=1e-3
            )


def test_snow_whitens_and_adds_each_flake_twice(images, rng):
    def snow(mean, std, zoom):
        return pixelwise.snow(images, rng, mean, std, zoom, 0.6, 8, 3, 0.9)

    without = snow(0.1, 0.0, 1)
    grey = 0.299 * images[:, :1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:]
    assert np.allclose(
        without, 0.9 * images + 0.1 * np.maximum(images, 1.5 * grey + 0.5), atol=1e-5
    )
    assert np.allclose(snow(0.7, 0.0, 1.75) - without, 1.4, atol=1e-5)
    assert np.allclose(snow(5.0, 0.0, 1) - without, 2, atol=1e-5)  # clipped to one


def test_fog_is_a_plasma_under_the_same_ceiling(images):
    out = pixelwise.fog(images, np.random.default_rng(3), 0.75, 2.5)
    haze = pixelwise.plasma(3, 2.5, np.random.default_rng(3))
    largest = images.max((1, 2, 3), keepdims=True)
    assert np.allclose(out, (images + 0.75 * haze) * largest / (largest + 0.75), atol=1e-5)
    assert (pixelwise.fog(0 * images, np.random.default_rng(3), 1, 2) == 0).all()


def test_plasma_is_the_diamond_square_algorithm():
    n, side, decay = 2, 32, 1.75
    rng = np.random.default_rng(7)
    field = np.zeros((n, side, side))
    step, wibble = side, 100.0
    while step >= 2:
        half = step // 2
        corners, sides = [(-1, -1), (-1, 1), (1, -1), (1, 1)], [(-1, 0), (1, 0), (0, -1), (0, 1)]
        for row, column, around in ((half, half, corners), (0, half, sides), (half, 0, sides)):
            noise = rng.uniform(-1, 1, (n, side // step, side // step))
            mean = sum(np.roll(field, (half * dy, half * dx), axis=(1, 2)) for dy, dx in around) / 4
            field[:, row::step, column::step] = mean[:, row::step, column::step] + wibble**2 * noise
        step, wibble = half, wibble / decay
    low, high = (part(field, axis=(1, 2), keepdims=True) for part in (np.min, np.max))
    expected = (field - low) / (high - low)
    out = pixelwise.plasma(n, decay, np.random.default_rng(7))
    assert np.allclose(out[:, 0], expected, atol=1e-6)


def test_frost_is_ice_of_the_photographs_level_and_contrast_at_every_strength(images, rng):
    grey = pixelwise.luma(pixelwise.frost(np.zeros((100, 3, 32, 32), dtype=np.float32), rng, 1, 1))
    levels = grey.mean(axis=(1, 2, 3))
    assert 0.4 < levels.min() < 0.5 < 0.76 < levels.max() < 0.86
    assert grey.std(axis=(1, 2, 3)).mean() == pytest.approx(0.085, abs=0.008)
    ice = pixelwise.frost(0 * images, np.random.default_rng(2), 1, 1)
    out = pixelwise.frost(images, np.random.default_rng(2), 0.75, 0.45)
    assert np.allclose(out, 0.75 * images + 0.45 * ice, atol=1e-5)


def test_pixelate_averages_blocks(images, rng):
    out = 255 * pixelwise.pixelate(images, rng, 0.5)
    blocks = 255 * images.reshape(3, 3, 16, 2, 16, 2).mean(axis=(3, 5))
    assert np.abs(out - np.kron(blocks, np.ones((2, 2)))).max() < 1.01


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_pillows(images, rng, channels):
    images = images[:, :channels]
    out = pixelwise.jpeg_compression(images, rng, 40)
    for image, result in zip(images, out, strict=True):
        pixels = np.uint8(np.rint(255 * image.transpose(1, 2, 0)))
        buffer = BytesIO()
        Image.fromarray(pixels.squeeze()).save(buffer, "JPEG", quality=40)
        expected = np.asarray(Image.open(buffer)).reshape(32, 32, channels)
        assert np.array_equal(np.rint(255 * result).transpose(1, 2, 0), expected)


def flat(value):
    return np.full((40, 3, 32, 32), value, dtype=np.float32)


def test_gaussian_noise_is_normal_and_independent(rng):
    noise = pixelwise.gaussian_noise(flat(0.3), rng, 0.08) - 0.3
    assert (noise.mean(), noise.std()) == (
        pytest.approx(0, abs=1e-3),
        pytest.approx(0.08, rel=0.01),
    )
    assert (np.abs(noise) < 0.08).mean() == pytest.approx(0.6827, abs=0.005)
    assert abs(np.corrcoef(noise[..., 1:].ravel(), noise[..., :-1].ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("value", [0.1, 1.0])
def test_shot_noise_counts_photons(rng, value):
    out = pixelwise.shot_noise(flat(value), rng, 50)
    assert (out.mean(), out.var()) == (
        pytest.approx(value, rel=0.01),
        pytest.approx(value / 50, rel=0.03),
    )
    assert np.allclose(out * 50, np.rint(out * 50), atol=1e-3)


def test_impulse_noise_sets_a_share_to_black_or_white(rng):
    out = pixelwise.impulse_noise(flat(0.4), rng, 0.07)
    shares = [(out == value).mean() for value in (0, 1, np.float32(0.4))]
    assert shares == pytest.approx([0.035, 0.035, 0.93], abs=8 * np.sqrt(0.035 * 0.965 / out.size))


def test_brightness_raises_the_value_of_hsv(rng):
    images = rng.random((1, 3, 8, 8)).astype(np.float32)
    images[0, :, 0, :3] = np.array([(0, 0, 0), (0.5, 0.5, 0.5), (1, 0, 0.2)]).T
    out = pixelwise.brightness(images, rng, 0.3)
    for pixel, result in zip(
        images[0].reshape(3, 64).T.tolist(), out[0].reshape(3, 64).T, strict=True
    ):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        expected = colorsys.hsv_to_rgb(hue, saturation, min(value + 0.3, 1))
        assert result.tolist() == pytest.approx(expected, abs=1e-5)
