import numpy as np
import pytest

from probattn.experiments.data.images.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def flat(value, n=40):
    return np.full((n, 3, 32, 32), value, dtype=np.float32)


def test_gaussian_noise_is_normal_and_independent(rng):
    noise = gaussian_noise(flat(0.3), rng, 0.08) - 0.3
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
    out = shot_noise(flat(value), rng, photons)
    assert out.mean() == pytest.approx(value, rel=0.01)
    assert out.var() == pytest.approx(value / photons, rel=0.03)
    assert np.allclose(out * photons, np.rint(out * photons), atol=1e-3)


def test_impulse_noise_sets_a_share_to_black_or_white(rng):
    out = impulse_noise(flat(0.4), rng, 0.07)
    n = out.size
    margin = 4 * np.sqrt(0.035 * 0.965 / n)
    assert (out == 0).mean() == pytest.approx(0.035, abs=margin)
    assert (out == 1).mean() == pytest.approx(0.035, abs=margin)
    assert (out == np.float32(0.4)).mean() == pytest.approx(0.93, abs=2 * margin)


def test_speckle_noise_grows_with_the_value(rng):
    assert (speckle_noise(flat(0), rng, 0.2) == 0).all()
    out = speckle_noise(flat(0.25), rng, 0.2)
    assert out.mean() == pytest.approx(0.25, rel=0.01)
    assert out.std() == pytest.approx(0.2 * 0.25, rel=0.01)
