"""Out-of-distribution (OOD) sets: names, limit, conversion of pixels, and the other CIFAR."""

import numpy as np
import pytest
import torch
from PIL import Image

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images import cifar
from probattn.experiments.data.images.datasets import NAMES as DATASETS
from probattn.experiments.data.ood.datasets import NAMES, default_names, load

RGB = {"size": 32, "channels": 3, "in_distribution": "cifar10"}
GREY = {"size": 8, "channels": 1, "in_distribution": "digits"}


def noise(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


class TestNames:
    @pytest.mark.parametrize("name", DATASETS)
    def test_every_data_set_has_ood_sets(self, name):
        assert set(default_names(name)) <= set(NAMES) - {name}

    def test_those_of_digits_need_no_data(self, tmp_path):
        for name in default_names("digits"):
            assert len(load(name, root=tmp_path / "absent", **GREY)) == 360

    def test_data_sets_without_a_default_are_refused(self):
        with pytest.raises(ValueError, match="no default OOD sets for 'mnist': name some of svhn, "):
            default_names("mnist")

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("svnh", r"unknown OOD set 'svnh'; did you mean svhn\? known: svhn, cifar10, .*\./photos"),
            ("lsun-crp", "did you mean lsun-crop"),
            ("zzzz", "'zzzz'; known: "),
            ("cifar10", "the network was trained on cifar10: name an OOD set"),
        ],
    )
    def test_bad_names(self, tmp_path, name, message):
        with pytest.raises(ValueError, match=message):
            load(name, root=tmp_path, **RGB)

    def test_a_folder_without_a_slash_is_told_how_to_be_written(self, tmp_path, monkeypatch, write):
        monkeypatch.chdir(tmp_path)
        write(tmp_path / "holiday")
        with pytest.raises(ValueError, match=r"a folder's path such as \./holiday$"):
            load("holiday", **RGB)
        assert len(load("./holiday", **RGB)) == 3

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"channels": 4}, "OOD images have 1 or 3 channels, the network expects 4"),
            ({"size": 0}, "size and limit must be at least 1, got 0 and None"),
            ({"limit": 0}, "size and limit must be at least 1, got 8 and 0"),
        ],
    )
    def test_numbers_that_make_no_images(self, options, message):
        with pytest.raises(ValueError, match=message):
            load("letters", **(GREY | options))


class TestLimit:
    def test_a_smaller_one_keeps_a_subset_in_order(self, tmp_path, write, pixels_of):
        everything = write(tmp_path, count=20)
        name = str(tmp_path)
        few, more = (pixels_of(load(name, limit=limit, **RGB)) for limit in (5, 12))
        place = [[int((everything == image).all((1, 2, 3)).argmax()) for image in part] for part in (few, more)]
        assert (len(set(place[0])), len(set(place[1]))) == (5, 12)
        assert set(place[0]) < set(place[1])
        assert all(part == sorted(part) for part in place)
        assert np.array_equal(pixels_of(load(name, limit=99, **RGB)), everything)

    def test_the_seed_chooses(self, tmp_path, write):
        write(tmp_path, count=20)
        first, again, other = (load(str(tmp_path), limit=5, seed=seed, **RGB).images for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_nothing_else_is_opened(self, tmp_path, write, pixels_of):
        write(tmp_path, count=4)
        name = str(tmp_path)
        kept = pixels_of(load(name, limit=1, **RGB))[0]
        for number in range(4):
            if not np.array_equal(noise(number, 32, 32, 3), kept):
                (tmp_path / f"{number:03}.png").write_bytes(b"")
        assert np.array_equal(pixels_of(load(name, limit=1, **RGB))[0], kept)


class TestPixels:
    def test_grey_becomes_colour(self, tmp_path, write):
        expected = write(tmp_path, shape=(32, 32))
        found = load(str(tmp_path), **RGB).images.numpy()
        assert np.array_equal(found, np.repeat(expected[:, None], 3, axis=1))

    def test_colour_becomes_luma(self, tmp_path, write):
        colours = write(tmp_path, shape=(8, 8, 3)).astype(float)
        found = load(str(tmp_path), **GREY).images[:, 0].numpy()
        luma = colours @ (0.299, 0.587, 0.114)  # ITU-R 601
        assert np.abs(found - luma).max() <= 1

    @pytest.mark.parametrize("options", [RGB, GREY])
    def test_transparency_is_dropped(self, tmp_path, options):
        clear = noise(0, options["size"], options["size"], 4)
        Image.fromarray(clear).save(tmp_path / "clear.png")
        (tmp_path / "solid").mkdir()
        Image.fromarray(clear[..., :3]).save(tmp_path / "solid" / "solid.png")
        first, second = load(str(tmp_path), **options).images
        assert torch.equal(first, second)

    def test_palettes_with_transparency(self, tmp_path, pixels_of):
        indices, table = noise(0, 32, 32) % 3, np.array([[255, 0, 0], [0, 255, 0], [10, 20, 30]], np.uint8)
        image = Image.fromarray(indices).convert("P")
        image.putpalette(table.ravel().tolist())
        image.save(tmp_path / "palette.png", transparency=bytes([128, 0, 255]))
        assert np.array_equal(pixels_of(load(str(tmp_path), **RGB))[0], table[indices])

    def test_large_ones_are_averaged_not_sampled(self, tmp_path):
        # Stripes of one pixel: nearest or unsmoothed bilinear sampling would keep black and white.
        stripes = np.zeros((64, 64), np.uint8)
        stripes[:, ::2] = 255
        Image.fromarray(stripes).save(tmp_path / "stripes.png")
        found = load(str(tmp_path), **GREY).images[0, 0, :, 1:-1].float()
        assert (found - 127.5).abs().max() < 12

    def test_every_shape_becomes_the_whole_square(self, tmp_path):
        # Left half black, right half white, three times as wide as high, and the other way round.
        wide = np.zeros((40, 120), np.uint8)
        wide[:, 60:] = 255
        for name, pixels in (("a", wide), ("b", wide.T)):
            Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        first, second = load(str(tmp_path), **GREY).images[:, 0]
        assert (first[:, :3] == 0).all()
        assert (first[:, 5:] == 255).all()
        assert torch.equal(second, first.T)

    def test_small_ones_are_enlarged(self, tmp_path):
        Image.fromarray(np.full((1, 1), 77, np.uint8)).save(tmp_path / "dot.png")
        assert (load(str(tmp_path), **RGB).images == 77).all()


def test_the_other_cifar_is_its_test_part(tmp_path, monkeypatch, write, pixels_of):
    classes = [f"class{number}" for number in range(10)]
    for part, count in (("train", 2), ("test", 1)):
        for number, name in enumerate(classes):
            write(tmp_path / "cifar10" / part / name, count=count, seed=100 * number + (part == "test"))
    monkeypatch.setitem(cifar.CIFAR, "cifar10", cifar.CIFAR["cifar10"]._replace(num_train=20, num_test=10))
    found = pixels_of(load("cifar10", root=tmp_path, size=32, channels=3, in_distribution="cifar100"))
    assert np.array_equal(found, np.stack([noise(100 * number + 1, 32, 32, 3) for number in range(10)]))


def test_missing_cifar_says_what_it_says_elsewhere(tmp_path):
    with pytest.raises(DatasetError, match=f"CIFAR-100 is not in {tmp_path}"):
        load("cifar100", root=tmp_path, **RGB)
