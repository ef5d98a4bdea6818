"""Image files of noise; no network."""

from urllib.error import URLError

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.delenv("PROBATTN_DATA", raising=False)


@pytest.fixture
def write():
    """Function that writes images of noise into a folder and returns their pixels."""

    def write(folder, count=3, shape=(32, 32, 3), suffix=".png", seed=0):
        folder.mkdir(parents=True, exist_ok=True)
        pixels = [
            np.random.default_rng(seed + number).integers(0, 256, shape, dtype=np.uint8) for number in range(count)
        ]
        for number, each in enumerate(pixels):
            Image.fromarray(each).save(folder / f"{number:03}{suffix}")
        return np.stack(pixels)

    return write


@pytest.fixture
def pixels_of():
    """Function of labelled images that returns pixels (n, H, W, C)."""
    return lambda data: data.images.permute(0, 2, 3, 1).numpy()
