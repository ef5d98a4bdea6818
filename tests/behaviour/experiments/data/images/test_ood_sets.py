"""OOD sets: names, pixels, folders, and stored sets in the layouts of torchvision and pytorch-ood."""

import hashlib
import tarfile

import numpy as np
import pytest
import scipy.io
import torch
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image
from pytorch_ood.dataset import img
from torchvision.datasets import SVHN

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images import known_sets, ood_sets
from probattn.experiments.data.images.ood_sets import ARCHIVES, load

RGB = {"size": 32, "channels": 3}
GREY = {"size": 8, "channels": 1}
SOURCES = {name: (place, source) for name, (place, _, source) in ARCHIVES.items() if source}


@pytest.fixture
def small_archives(monkeypatch):
    """The archives hold three images each."""
    for name, (place, _, source) in ARCHIVES.items():
        monkeypatch.setitem(ood_sets.ARCHIVES, name, (place, 3, source))


def test_colours_and_sizes_become_those_of_the_network(tmp_path, write):
    colours = write(tmp_path / "colour", shape=(8, 8, 3)).astype(float)
    luma = colours @ (0.299, 0.587, 0.114)  # ITU-R 601
    assert np.abs(load(str(tmp_path / "colour"), **GREY).images[:, 0].numpy() - luma).max() <= 1
    grey = write(tmp_path / "grey", shape=(32, 32))
    assert np.array_equal(load(str(tmp_path / "grey"), **RGB).images.numpy(), np.repeat(grey[:, None], 3, axis=1))
    # Left half black, right half white, three times as wide as high: the whole image becomes a square.
    wide = np.zeros((40, 120), np.uint8)
    wide[:, 60:] = 255
    (tmp_path / "wide").mkdir()
    Image.fromarray(wide).save(tmp_path / "wide" / "a.png")
    Image.fromarray(wide.T).save(tmp_path / "wide" / "b.png")
    first, second = load(str(tmp_path / "wide"), **GREY).images[:, 0]
    assert (first[:, :3] == 0).all()
    assert (first[:, 5:] == 255).all()
    assert torch.equal(second, first.T)


def test_large_images_are_averaged_not_sampled(tmp_path):
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(tmp_path / "stripes.png")
    assert (load(str(tmp_path), **GREY).images[0, 0, :, 1:-1].float() - 127.5).abs().max() < 12


def test_a_folder_gives_every_image_at_any_depth_in_order(tmp_path, monkeypatch, write, pixels_of):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".hidden" / "photos"
    deep, top = write(folder / "a" / "b", count=2, seed=5), write(folder, count=2)
    (folder / ".notes.txt").write_text("no image")
    write(folder / ".cache")
    data = load("~/.hidden/photos", **RGB)
    assert np.array_equal(pixels_of(data), np.concatenate([top, deep]))
    assert data.labels.tolist() == [-1] * 4


def test_the_other_cifar_is_its_test_part(tmp_path, monkeypatch, write, pixels_of):
    expected = []
    for number in range(10):
        write(tmp_path / "cifar10-jpeg" / "train" / f"class{number}", count=2, seed=100 * number)
        expected.append(write(tmp_path / "cifar10-jpeg" / "test" / f"class{number}", count=1, seed=100 * number + 50))
    monkeypatch.setattr(known_sets, "CIFAR_SIZES", {"train": 20, "test": 10})
    assert np.array_equal(pixels_of(load("cifar10", root=tmp_path, **RGB)), np.concatenate(expected))


def test_svhn_is_read(tmp_path, monkeypatch, pixels_of):
    monkeypatch.setitem(SVHN.split_list, "test", ["http://nowhere/test_32x32.mat", "test_32x32.mat", None])
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    (tmp_path / "svhn").mkdir()
    content = {"X": pixels.transpose(1, 2, 3, 0), "y": np.array([10, 1, 2, 3, 4], np.uint8)[:, None]}
    scipy.io.savemat(tmp_path / "svhn" / "test_32x32.mat", content)
    data = load("svhn", root=tmp_path, **RGB)
    assert np.array_equal(pixels_of(data), pixels)
    assert data.labels.tolist() == [-1] * 5


@pytest.mark.usefixtures("small_archives")
@pytest.mark.parametrize("name", ARCHIVES)
def test_unpacked_archives_need_no_network(tmp_path, name, write, pixels_of):
    expected = write(tmp_path / ARCHIVES[name][0] / "class")
    assert np.array_equal(pixels_of(load(name, root=tmp_path, **RGB)), expected)


@pytest.mark.usefixtures("small_archives")
@pytest.mark.parametrize("name", SOURCES)
def test_packed_archives_need_no_network(tmp_path, monkeypatch, name, write, pixels_of):
    place, source = SOURCES[name][0], getattr(img, SOURCES[name][1])
    assert source.base_folder.rstrip("/") == place
    expected = write(tmp_path / "made" / place)
    with tarfile.open(tmp_path / source.filename, "w:gz") as file:
        file.add(tmp_path / "made", arcname=".")
    digest = hashlib.md5((tmp_path / source.filename).read_bytes()).hexdigest()
    monkeypatch.setattr(source, "tgz_md5", digest)
    assert np.array_equal(pixels_of(load(name, root=tmp_path, **RGB)), expected)


def test_half_an_archive_is_refused(tmp_path, write):
    write(tmp_path / "LSUN" / "test", count=2)
    with pytest.raises(DatasetError, match=rf"{tmp_path}/LSUN/test holds 2 of 10,000 images: give its complete folder"):
        load("lsun-crop", root=tmp_path, **RGB)


@pytest.mark.parametrize("name", ["textures", "svhn"])
def test_missing_sets_name_the_place_and_the_source(tmp_path, name):
    with pytest.raises(DatasetError, match=rf"is not in {tmp_path}.*http.*--data"):
        load(name, root=tmp_path, **RGB)


@pytest.mark.parametrize("name", ["letters", "patches"])
def test_generated_sets_need_no_data_and_are_fixed(tmp_path, name):
    first, again = (load(name, root=tmp_path / "absent", **GREY).images for _ in range(2))
    assert torch.equal(first, again)
    assert len(first) == 360
    assert len(first.unique(dim=0)) > 350


def test_letters_look_like_digits_as_far_as_numbers_tell():
    digits = known_sets.load("digits").test.images.float()
    letters = load("letters", **GREY).images.float()
    # Counts of 0 to 16 dots, as in scikit-learn's digits.
    assert torch.equal(letters.unique(), torch.tensor([round(dots * 255 / 16) for dots in range(17)]).float())
    assert letters.mean() == pytest.approx(digits.mean().item(), rel=0.15)
    # Ink keeps to the middle columns, and is in every row.
    for images in (digits, letters):
        columns, rows = images.mean((0, 1, 2)), images.mean((0, 1, 3))
        assert columns[[0, 7]].max() < 10
        assert columns[2:6].min() > 80
        assert rows.min() > 50


def test_patches_are_cut_from_both_photographs():
    from sklearn.datasets import load_sample_images

    patches = ood_sets.patches()
    for number in (0, 180, 359):
        patch, photograph = patches[number], load_sample_images().images[number // 180]
        corners = sliding_window_view(photograph, patch.shape).squeeze(2)[..., 0, :8, :]
        top, left = np.argwhere((corners == patch[0, :8]).all((2, 3)))[0]
        side = len(patch)
        assert 32 <= side <= 160
        assert np.array_equal(photograph[top : top + side, left : left + side], patch)
