"""OOD sets: pixels, folders, and stored sets in the layouts of torchvision and pytorch-ood."""

import hashlib
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_ood.dataset import img

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images import known_sets, ood_sets
from probattn.experiments.data.images.ood_sets import ARCHIVES, load

RGB = {"size": 32, "channels": 3}
GREY = {"size": 8, "channels": 1}


def pixels_of(data):
    """Return the pixels of images in the order of Pillow, (n, H, W, C)."""
    assert set(data.labels.tolist()) == {-1}
    return data.images.permute(0, 2, 3, 1).numpy()


def test_colours_and_sizes_become_those_of_the_network(tmp_path, write):
    colours = write(tmp_path / "colour", shape=(8, 8, 3)).astype(float)
    luma = colours @ (0.299, 0.587, 0.114)  # ITU-R 601
    assert np.abs(load(str(tmp_path / "colour"), **GREY).images[:, 0].numpy() - luma).max() <= 1
    grey = write(tmp_path / "grey", shape=(32, 32))
    assert np.array_equal(
        load(str(tmp_path / "grey"), **RGB).images.numpy(), np.repeat(grey[:, None], 3, axis=1)
    )
    wide = np.zeros((40, 120), np.uint8)  # the whole image becomes a square
    wide[:, 60::2] = 255
    (tmp_path / "wide").mkdir()
    Image.fromarray(wide).save(tmp_path / "wide" / "a.png")
    (image,) = load(str(tmp_path / "wide"), **GREY).images[:, 0].float()
    assert (image[:, :3] == 0).all()
    assert (image[:, 5:-1] - 127.5).abs().max() < 12  # large images are averaged, not sampled


def test_a_folder_gives_every_image_at_any_depth_in_order(tmp_path, monkeypatch, write):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".hidden" / "photos"
    deep, top = write(folder / "a" / "b", count=2, seed=5), write(folder, count=2)
    write(folder / ".cache")
    assert np.array_equal(pixels_of(load("~/.hidden/photos", **RGB)), np.concatenate([top, deep]))


def test_the_other_cifar_is_its_test_part(cifar_root):
    images = load("cifar10", root=cifar_root, **RGB)
    assert torch.equal(images.images, known_sets.load("cifar10", root=cifar_root).test.images)


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_are_read_packed_and_unpacked_without_a_network(
    tmp_path, monkeypatch, write, name
):
    place, _, source = ARCHIVES[name]
    monkeypatch.setitem(ood_sets.ARCHIVES, name, (place, 3, source))
    expected = write(tmp_path / "a" / place / "class")
    assert np.array_equal(pixels_of(load(name, root=tmp_path / "a", **RGB)), expected)
    if source:
        packed = tmp_path / "b" / getattr(img, source).filename
        packed.parent.mkdir()
        with tarfile.open(packed, "w:gz") as file:
            file.add(tmp_path / "a", arcname=".")
        monkeypatch.setattr(
            getattr(img, source), "tgz_md5", hashlib.md5(packed.read_bytes()).hexdigest()
        )
        assert np.array_equal(pixels_of(load(name, root=tmp_path / "b", **RGB)), expected)


def test_half_an_archive_and_missing_sets_are_named(tmp_path, write):
    write(tmp_path / "LSUN" / "test", count=2)
    with pytest.raises(DatasetError, match=r"LSUN/test holds 2 of 10,000 images"):
        load("lsun-crop", root=tmp_path, **RGB)
    for name in ("textures", "svhn"):
        with pytest.raises(DatasetError, match=rf"is not in {tmp_path}.*http.*--data"):
            load(name, root=tmp_path, **RGB)


@pytest.mark.parametrize("name", ["letters", "patches"])
def test_generated_sets_need_no_data_and_are_fixed(tmp_path, name):
    first, again = (load(name, root=tmp_path / "absent", **GREY).images for _ in range(2))
    assert torch.equal(first, again)
    assert len(first) == 360
    assert len(first.unique(dim=0)) > 350
