"""Out-of-distribution (OOD) sets from folders of images."""

import numpy as np
import pytest
from PIL import Image

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.ood.datasets import load

RGB = {"size": 32, "channels": 3, "in_distribution": "cifar10"}


def test_every_image_at_any_depth_in_order_with_labels_of_minus_one(tmp_path, write, pixels_of):
    deep, top = write(tmp_path / "a" / "b", count=2, seed=5), write(tmp_path, count=2)
    (tmp_path / "notes.txt").write_text("no image")
    write(tmp_path / ".cache")
    (tmp_path / "._000.png").write_bytes(b"what macOS leaves behind")
    data = load(str(tmp_path), **RGB)
    assert np.array_equal(pixels_of(data), np.concatenate([top, deep]))
    assert data.labels.tolist() == [-1] * 4


@pytest.mark.parametrize("suffix", [".png", ".PNG", ".bmp", ".tiff", ".ppm"])
def test_formats_without_loss(tmp_path, suffix, write, pixels_of):
    expected = write(tmp_path, suffix=suffix)
    assert np.array_equal(pixels_of(load(str(tmp_path), **RGB)), expected)


def test_home_and_hidden_parents(tmp_path, monkeypatch, write):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / ".hidden" / "photos")
    assert len(load("~/.hidden/photos", **RGB)) == 3


@pytest.mark.parametrize("place", ["nowhere/at/all", "./file.png", "./empty"])
def test_no_folder_or_an_empty_one(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    (tmp_path / "file.png").touch()
    expected = {"nowhere/at/all": "does not exist", "./file.png": "is not a folder", "./empty": "holds no image"}
    with pytest.raises(DatasetError, match=f"{(tmp_path / place).name} {expected[place]}"):
        load(place, **RGB)


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
@pytest.mark.parametrize("kept", [0, 0.6])
def test_broken_files_are_named(tmp_path, suffix, kept, write):
    write(tmp_path, suffix=suffix)
    broken = tmp_path / f"001{suffix}"
    content = broken.read_bytes()
    broken.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(DatasetError, match=rf"cannot decode {broken}: .*; put an intact copy there or remove it"):
        load(str(tmp_path), **RGB)


def test_a_chunk_that_is_broken(tmp_path, write):
    write(tmp_path, count=1, shape=(200, 200, 3))
    content = (tmp_path / "000.png").read_bytes()
    second = content.index(b"IDAT", content.index(b"IDAT") + 4)
    (tmp_path / "000.png").write_bytes(content[:second] + bytes(4) + content[second + 4 :])
    with pytest.raises(DatasetError, match=r"cannot decode .*000\.png: broken PNG file"):
        load(str(tmp_path), **RGB)


def test_pixels_of_16_bits_are_refused(tmp_path):
    Image.fromarray(np.full((4, 4), 300, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(DatasetError, match=r"deep\.png: it has more than 8 bits per channel \(mode I;16\)"):
        load(str(tmp_path), **RGB)
