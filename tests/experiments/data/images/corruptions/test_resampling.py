import numpy as np
import pytest

from probattn.experiments.data.images.corruptions.resampling import (
    blur_motion,
    resize_like,
    take_pixels,
    upsample_small,
    zoom_in,
)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("shape", "seen"), [((8, 8), (32, 32)), ((28, 40), (56, 80)), ((1, 1), (32, 32)), ((33, 33), (33, 33))]
)
def test_small_images_are_upsampled_to_at_least_32_pixels_without_loss(rng, shape, seen):
    images = rng.random((2, 3, *shape)).astype(np.float32)
    shapes = []

    @upsample_small
    def half(large, factor):
        """Halve."""
        shapes.append(large.shape[-2:])
        return factor * large

    assert np.allclose(half(images, 0.5), images / 2, atol=1e-7)
    assert shapes == [seen]
    assert half.__doc__ == "Halve."


def test_take_pixels_repeats_the_border():
    fields = np.arange(12.0).reshape(1, 1, 3, 4)
    rows, columns = np.array([[[-2], [1], [7]]]), np.array([[[3, -1, 9, 0]]])
    assert take_pixels(fields, rows, columns)[0, 0].tolist() == [[3, 0, 3, 0], [7, 4, 7, 4], [11, 8, 11, 8]]


def test_motion_blur_averages_the_pixels_in_its_direction():
    fields = np.zeros((4, 1, 9, 9), dtype=np.float32)
    fields[:, 0, 4, 4] = 1
    out = blur_motion(fields, 2, 1.0, np.array([0.0, 90.0, 180.0, -90.0]))[:, 0]
    weights = np.exp(-0.5 * np.arange(5) ** 2)
    weights /= weights.sum()
    lines = [out[0, 4, 4::-1], out[1, 4::-1, 4], out[2, 4, 4:], out[3, 4:, 4]]
    assert np.allclose(lines, weights, atol=1e-6)
    assert np.allclose(out.sum(axis=(1, 2)), 1, atol=1e-6)


def test_zoom_of_a_constant_and_of_a_ramp():
    ramp = np.arange(32, dtype=np.float32)
    fields = np.stack([np.ones((32, 32)), np.broadcast_to(ramp, (32, 32))])[:, None].astype(np.float32)
    out = zoom_in(fields, 2)
    assert np.allclose(out[0], 1, atol=1e-6)
    assert np.allclose(out[1, 0], 8 + np.arange(32) * 15 / 31, atol=1e-5)
    assert np.allclose(zoom_in(fields, 1), fields, atol=1e-6)


def test_resize_averages_when_it_shrinks():
    fields = np.zeros((1, 1, 32, 32), dtype=np.float32)
    fields[..., ::4, ::4] = 1
    inner = resize_like(fields, np.zeros((1, 1, 8, 8), dtype=np.float32))[..., 1:-1, 1:-1]
    assert np.allclose(inner, 1 / 16, atol=0.02)


@pytest.mark.parametrize("side", [8, 20, 32, 50])
def test_fitted_keeps_constants_and_position(side):
    like = np.zeros((1, 1, side, side), dtype=np.float32)
    at = (np.arange(32, dtype=np.float32) + 0.5) / 32
    fields = np.broadcast_to(np.stack([np.full(32, 0.3, np.float32), at])[:, None, None], (2, 1, 32, 32)).copy()
    out = resize_like(fields, like)
    assert np.allclose(out[0], 0.3, atol=1e-6)
    inner = slice(side // 6, -(side // 6))  # at the border the average is one-sided
    assert np.allclose(out[1, 0, :, inner], ((np.arange(side) + 0.5) / side)[inner], atol=3e-3)
    assert np.array_equal(resize_like(fields, fields), fields)
