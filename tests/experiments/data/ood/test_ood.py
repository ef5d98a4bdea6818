"""Foreign images: small made-up sets in the layouts of SVHN, CIFAR and pytorch-ood, folders, and the embedded ones."""

import hashlib
import sys
import tarfile
from urllib.error import URLError

import numpy as np
import pytest
import scipy.io
import torch
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image
from pytorch_ood.dataset import img
from torchvision.datasets import SVHN

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images import cifar
from probattn.experiments.data.images.datasets import NAMES as DATASETS
from probattn.experiments.data.images.datasets import load
from probattn.experiments.data.ood import downloads, generated
from probattn.experiments.data.ood.datasets import NAMES, default, outliers

RGB = {"size": 32, "channels": 3, "inside": "cifar10"}
GREY = {"size": 8, "channels": 1, "inside": "digits"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.delenv("PROBATTN_DATA", raising=False)


@pytest.fixture
def small_archives(monkeypatch):
    """The archives hold three images each."""
    for name, archive in downloads.ARCHIVES.items():
        monkeypatch.setitem(downloads.ARCHIVES, name, archive._replace(num_images=3))


def noise(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write(folder, count=3, shape=(32, 32, 3), suffix=".png", seed=0):
    """Images of noise; returns their pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = [noise(seed + number, *shape) for number in range(count)]
    for number, each in enumerate(pixels):
        Image.fromarray(each).save(folder / f"{number:03}{suffix}")
    return np.stack(pixels)


def pixels_of(data):
    """As (n, H, W, C)."""
    return data.images.permute(0, 2, 3, 1).numpy()


class TestNames:
    @pytest.mark.parametrize("inside", DATASETS)
    def test_every_data_set_has_foreign_ones(self, inside):
        assert set(default(inside)) <= set(NAMES) - {inside}

    def test_those_of_digits_need_no_data(self, tmp_path):
        for name in default("digits"):
            assert len(outliers(name, root=tmp_path / "absent", **GREY)) == 360

    def test_data_sets_without_a_default_are_refused(self):
        with pytest.raises(ValueError, match="no default sets of foreign images for 'mnist': name some of svhn, "):
            default("mnist")

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("svnh", r"unknown set of foreign images 'svnh'; did you mean svhn\? known: svhn, cifar10, .*\./photos"),
            ("lsun-crp", "did you mean lsun-crop"),
            ("zzzz", "'zzzz'; known: "),
            ("cifar10", "cifar10 is what the network was trained on: name a set of foreign images"),
        ],
    )
    def test_bad_names(self, tmp_path, name, message):
        with pytest.raises(ValueError, match=message):
            outliers(name, root=tmp_path, **RGB)

    def test_a_folder_without_a_slash_is_told_how_to_be_written(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write(tmp_path / "holiday")
        with pytest.raises(ValueError, match=r"a folder's path such as \./holiday$"):
            outliers("holiday", **RGB)
        assert len(outliers("./holiday", **RGB)) == 3

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"channels": 4}, "foreign images have 1 or 3 channels, the network expects 4"),
            ({"size": 0}, "size and limit must be at least 1, got 0 and None"),
            ({"limit": 0}, "size and limit must be at least 1, got 8 and 0"),
        ],
    )
    def test_numbers_that_make_no_images(self, options, message):
        with pytest.raises(ValueError, match=message):
            outliers("letters", **(GREY | options))


class TestLimit:
    def test_a_smaller_one_keeps_a_subset_in_order(self, tmp_path):
        everything = write(tmp_path, count=20)
        name = str(tmp_path)
        few, more = (pixels_of(outliers(name, limit=limit, **RGB)) for limit in (5, 12))
        place = [[int((everything == image).all((1, 2, 3)).argmax()) for image in part] for part in (few, more)]
        assert (len(set(place[0])), len(set(place[1]))) == (5, 12)
        assert set(place[0]) < set(place[1])
        assert all(part == sorted(part) for part in place)
        assert np.array_equal(pixels_of(outliers(name, limit=99, **RGB)), everything)

    def test_the_seed_chooses(self, tmp_path):
        write(tmp_path, count=20)
        first, again, other = (outliers(str(tmp_path), limit=5, seed=seed, **RGB).images for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_nothing_else_is_opened(self, tmp_path):
        write(tmp_path, count=4)
        name = str(tmp_path)
        kept = pixels_of(outliers(name, limit=1, **RGB))[0]
        for number in range(4):
            if not np.array_equal(noise(number, 32, 32, 3), kept):
                (tmp_path / f"{number:03}.png").write_bytes(b"")
        assert np.array_equal(pixels_of(outliers(name, limit=1, **RGB))[0], kept)


class TestFolders:
    def test_every_image_at_any_depth_in_order_with_labels_of_minus_one(self, tmp_path):
        deep, top = write(tmp_path / "a" / "b", count=2, seed=5), write(tmp_path, count=2)
        (tmp_path / "notes.txt").write_text("no image")
        write(tmp_path / ".cache")
        (tmp_path / "._000.png").write_bytes(b"what macOS leaves behind")
        data = outliers(str(tmp_path), **RGB)
        assert np.array_equal(pixels_of(data), np.concatenate([top, deep]))
        assert data.labels.tolist() == [-1] * 4

    @pytest.mark.parametrize("suffix", [".png", ".PNG", ".bmp", ".tiff", ".ppm"])
    def test_formats_without_loss(self, tmp_path, suffix):
        expected = write(tmp_path, suffix=suffix)
        assert np.array_equal(pixels_of(outliers(str(tmp_path), **RGB)), expected)

    def test_home_and_hidden_parents(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        write(tmp_path / ".hidden" / "photos")
        assert len(outliers("~/.hidden/photos", **RGB)) == 3

    @pytest.mark.parametrize("place", ["nowhere/at/all", "./file.png", "./empty"])
    def test_no_folder_or_an_empty_one(self, tmp_path, monkeypatch, place):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "empty" / "deeper").mkdir(parents=True)
        (tmp_path / "file.png").touch()
        expected = {"nowhere/at/all": "is not there", "./file.png": "is not a folder", "./empty": "holds no image"}
        with pytest.raises(DatasetError, match=f"{(tmp_path / place).name} {expected[place]}"):
            outliers(place, **RGB)

    @pytest.mark.parametrize("suffix", [".png", ".jpg"])
    @pytest.mark.parametrize("kept", [0, 0.6])
    def test_broken_files_are_named(self, tmp_path, suffix, kept):
        write(tmp_path, suffix=suffix)
        broken = tmp_path / f"001{suffix}"
        content = broken.read_bytes()
        broken.write_bytes(content[: int(kept * len(content))])
        with pytest.raises(DatasetError, match=rf"cannot decode {broken}: .*; put a sound copy there or remove it"):
            outliers(str(tmp_path), **RGB)

    def test_a_chunk_that_is_broken(self, tmp_path):
        write(tmp_path, count=1, shape=(200, 200, 3))
        content = (tmp_path / "000.png").read_bytes()
        second = content.index(b"IDAT", content.index(b"IDAT") + 4)
        (tmp_path / "000.png").write_bytes(content[:second] + bytes(4) + content[second + 4 :])
        with pytest.raises(DatasetError, match=r"cannot decode .*000\.png: broken PNG file"):
            outliers(str(tmp_path), **RGB)

    def test_pixels_of_16_bits_are_refused(self, tmp_path):
        Image.fromarray(np.full((4, 4), 300, np.uint16)).save(tmp_path / "deep.png")
        with pytest.raises(DatasetError, match=r"deep\.png: its pixels have more than 8 bits \(mode I;16\)"):
            outliers(str(tmp_path), **RGB)


class TestPixels:
    def test_grey_becomes_colour(self, tmp_path):
        expected = write(tmp_path, shape=(32, 32))
        found = outliers(str(tmp_path), **RGB).images.numpy()
        assert np.array_equal(found, np.repeat(expected[:, None], 3, axis=1))

    def test_colour_becomes_luma(self, tmp_path):
        colours = write(tmp_path, shape=(8, 8, 3)).astype(float)
        found = outliers(str(tmp_path), **GREY).images[:, 0].numpy()
        luma = colours @ (0.299, 0.587, 0.114)  # ITU-R 601
        assert np.abs(found - luma).max() <= 1

    @pytest.mark.parametrize("options", [RGB, GREY])
    def test_transparency_is_dropped(self, tmp_path, options):
        clear = noise(0, options["size"], options["size"], 4)
        Image.fromarray(clear).save(tmp_path / "clear.png")
        (tmp_path / "solid").mkdir()
        Image.fromarray(clear[..., :3]).save(tmp_path / "solid" / "solid.png")
        first, second = outliers(str(tmp_path), **options).images
        assert torch.equal(first, second)

    def test_palettes_with_transparency(self, tmp_path):
        indices, table = noise(0, 32, 32) % 3, np.array([[255, 0, 0], [0, 255, 0], [10, 20, 30]], np.uint8)
        image = Image.fromarray(indices).convert("P")
        image.putpalette(table.ravel().tolist())
        image.save(tmp_path / "palette.png", transparency=bytes([128, 0, 255]))
        assert np.array_equal(pixels_of(outliers(str(tmp_path), **RGB))[0], table[indices])

    def test_large_ones_are_averaged_not_sampled(self, tmp_path):
        # Stripes of one pixel: nearest or unsmoothed bilinear sampling would keep black and white.
        stripes = np.zeros((64, 64), np.uint8)
        stripes[:, ::2] = 255
        Image.fromarray(stripes).save(tmp_path / "stripes.png")
        found = outliers(str(tmp_path), **GREY).images[0, 0, :, 1:-1].float()
        assert (found - 127.5).abs().max() < 12

    def test_every_shape_becomes_the_whole_square(self, tmp_path):
        # Left half black, right half white, three times as wide as high, and the other way round.
        wide = np.zeros((40, 120), np.uint8)
        wide[:, 60:] = 255
        for name, pixels in (("a", wide), ("b", wide.T)):
            Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        first, second = outliers(str(tmp_path), **GREY).images[:, 0]
        assert (first[:, :3] == 0).all()
        assert (first[:, 5:] == 255).all()
        assert torch.equal(second, first.T)

    def test_small_ones_are_enlarged(self, tmp_path):
        Image.fromarray(np.full((1, 1), 77, np.uint8)).save(tmp_path / "dot.png")
        assert (outliers(str(tmp_path), **RGB).images == 77).all()


class TestSVHN:
    PIXELS = noise(0, 5, 32, 32, 3)

    @pytest.fixture
    def mat(self, monkeypatch):
        monkeypatch.setitem(SVHN.split_list, "test", ["http://nowhere/test_32x32.mat", "test_32x32.mat", None])

        def write_mat(folder):
            folder.mkdir(parents=True, exist_ok=True)
            labels = np.array([10, 1, 2, 3, 4], np.uint8)[:, None]
            scipy.io.savemat(folder / "test_32x32.mat", {"X": self.PIXELS.transpose(1, 2, 3, 0), "y": labels})

        return write_mat

    @pytest.mark.parametrize("place", ["svhn", "."])
    def test_is_read(self, tmp_path, mat, place):
        mat(tmp_path / place)
        data = outliers("svhn", root=tmp_path, **RGB)
        assert np.array_equal(pixels_of(data), self.PIXELS)
        assert data.labels.tolist() == [-1] * 5

    def test_is_downloaded_to_a_folder_of_its_own(self, tmp_path, mat, monkeypatch):
        monkeypatch.setattr(SVHN, "download", lambda self: mat(tmp_path / "svhn"))
        assert len(outliers("svhn", root=tmp_path, **RGB)) == 5

    def test_damaged(self, tmp_path):
        (tmp_path / "test_32x32.mat").write_bytes(b"half")
        with pytest.raises(DatasetError, match=r"test_32x32\.mat is damaged: .* Remove it and put http.*test_32x32"):
            outliers("svhn", root=tmp_path, **RGB)
        assert (tmp_path / "test_32x32.mat").read_bytes() == b"half"

    @pytest.mark.parametrize("by", ["argument", "variable", "default"])
    def test_missing(self, tmp_path, monkeypatch, by):
        monkeypatch.chdir(tmp_path)
        root = tmp_path / {"argument": "a", "variable": "v", "default": "data"}[by]
        if by != "default":
            monkeypatch.setenv("PROBATTN_DATA", str(tmp_path / "v"))
        message = (
            rf"SVHN is not in {root}\. Looked for test_32x32\.mat in {root}/svhn, {root}\. "
            r"The download failed: .*no network.*--data or the environment variable PROBATTN_DATA"
        )
        with pytest.raises(DatasetError, match=message):
            outliers("svhn", root=root if by == "argument" else None, **RGB)


def test_the_other_cifar_is_its_test_part(tmp_path, monkeypatch):
    classes = [f"class{number}" for number in range(10)]
    for part, count in (("train", 2), ("test", 1)):
        for number, name in enumerate(classes):
            write(tmp_path / "cifar10" / part / name, count=count, seed=100 * number + (part == "test"))
    monkeypatch.setitem(cifar.CIFAR, "cifar10", cifar.CIFAR["cifar10"]._replace(num_train=20, num_test=10))
    found = pixels_of(outliers("cifar10", root=tmp_path, size=32, channels=3, inside="cifar100"))
    assert np.array_equal(found, np.stack([noise(100 * number + 1, 32, 32, 3) for number in range(10)]))


def test_missing_cifar_says_what_it_says_elsewhere(tmp_path):
    with pytest.raises(DatasetError, match=f"CIFAR-100 is not in {tmp_path}"):
        outliers("cifar100", root=tmp_path, **RGB)


@pytest.mark.usefixtures("small_archives")
class TestArchives:
    SOURCES = {name: archive for name, archive in downloads.ARCHIVES.items() if archive.source}

    @pytest.mark.parametrize("name", downloads.ARCHIVES)
    def test_unpacked_needs_no_network(self, tmp_path, name):
        expected = write(tmp_path / downloads.ARCHIVES[name].folder)
        assert np.array_equal(pixels_of(outliers(name, root=tmp_path, **RGB)), expected)

    @pytest.mark.parametrize("name", SOURCES)
    def test_the_folder_is_the_one_pytorch_ood_unpacks(self, name):
        archive = self.SOURCES[name]
        assert getattr(img, archive.source).base_folder.rstrip("/") == archive.folder

    @pytest.mark.parametrize("name", SOURCES)
    def test_packed_needs_no_network(self, tmp_path, monkeypatch, name):
        archive, source = self.SOURCES[name], getattr(img, self.SOURCES[name].source)
        expected = write(tmp_path / "made" / archive.folder / "class", shape=(48, 32, 3))
        with tarfile.open(tmp_path / source.filename, "w:gz") as file:
            file.add(tmp_path / "made", arcname=".")
        digest = hashlib.md5((tmp_path / source.filename).read_bytes()).hexdigest()
        monkeypatch.setattr(source, "tgz_md5", digest)
        found = pixels_of(outliers(name, root=tmp_path, **RGB))
        resized = [np.asarray(Image.fromarray(each).resize((32, 32), Image.Resampling.BILINEAR)) for each in expected]
        assert np.array_equal(found, np.stack(resized))

    def test_the_classes_of_textures_are_one_set(self, tmp_path):
        for name in ("banded", "blotchy", "zigzagged"):
            write(tmp_path / "dtd" / "images" / name, count=2, suffix=".jpg")
        assert len(outliers("textures", root=tmp_path, **RGB)) == 6

    def test_half_missing(self, tmp_path):
        folder = tmp_path / "LSUN" / "test"
        write(folder, count=2)
        message = (
            rf"{folder} is not a complete LSUN-crop: it holds 2 images, expected 3\. Remove it and unpack it again"
        )
        with pytest.raises(DatasetError, match=message):
            outliers("lsun-crop", root=tmp_path, limit=1, **RGB)

    @pytest.mark.parametrize("name", SOURCES)
    def test_missing(self, tmp_path, name):
        archive, source = self.SOURCES[name], getattr(img, self.SOURCES[name].source)
        message = (
            rf"{archive.title} is not in {tmp_path}\. Looked for images in {tmp_path / archive.folder}, "
            rf"then for {source.filename} in {tmp_path}\. The download failed: .*no network.*Put http"
        )
        with pytest.raises(DatasetError, match=message):
            outliers(name, root=tmp_path, **RGB)

    def test_missing_without_the_extra(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "pytorch_ood.dataset", None)
        with pytest.raises(DatasetError, match=r"pip install probattn\[ood\]"):
            outliers("textures", root=tmp_path, **RGB)

    def test_lsun_itself_must_be_exported(self, tmp_path):
        with pytest.raises(DatasetError, match=rf"LSUN is not in {tmp_path}\. .*lsun-test\. Export the test images"):
            outliers("lsun", root=tmp_path, **RGB)


def test_whole_archives_hold_what_their_authors_say():
    counts = {name: archive.num_images for name, archive in downloads.ARCHIVES.items()}
    assert counts == dict.fromkeys(counts, 10_000) | {"textures": 5_640}


class TestEmbedded:
    def test_letters_look_like_digits_as_far_as_numbers_tell(self):
        digits = load("digits").test.images.float()
        letters = outliers("letters", **GREY).images.float()
        assert len(letters) == 360
        # Counts of 0 to 16 dots, as in scikit-learn's digits.
        assert torch.equal(letters.unique(), torch.tensor([round(dots * 255 / 16) for dots in range(17)]).float())
        assert letters.mean() == pytest.approx(digits.mean().item(), rel=0.15)
        # Ink keeps to the middle columns, and is found in every row.
        for images in (digits, letters):
            columns, rows = images.mean((0, 1, 2)), images.mean((0, 1, 3))
            assert columns[[0, 7]].max() < 10
            assert columns[2:6].min() > 80
            assert rows.min() > 50
        assert (letters.amax((1, 2, 3)) > 200).all()

    def test_letters_keep_their_form(self):
        # At 32×32 a bold H is empty above and below its bar, an L at the upper right; all other letters differ.
        letters = outliers("letters", size=32, channels=3, inside="cifar10").images
        assert (letters[:, 0] == letters[:, 2]).all()
        plain = letters[:60, 0].view(15, 4, 32, 32).float().mean(1) / 255
        middle = dict(zip("ACEFHKLMNPRUVWX", plain, strict=True))
        assert middle["H"][2:8, 14:18].mean() < 0.05
        assert middle["H"][24:30, 14:18].mean() < 0.05
        assert middle["H"][14:19, 14:18].mean() > 0.5
        assert middle["L"][:20, 18:].mean() < 0.05
        assert middle["L"][27:30, 12:20].mean() > 0.5
        assert middle["U"][:16, 14:18].mean() < 0.05

    def test_patches_are_cut_from_both_photographs(self):
        from sklearn.datasets import load_sample_images

        patches = generated.patches(seed=0)
        for number in (0, 99, 180, 359):
            patch, photograph = patches[number], load_sample_images().images[number // 180]
            corners = sliding_window_view(photograph, patch.shape).squeeze(2)[..., 0, :8, :]
            top, left = np.argwhere((corners == patch[0, :8]).all((2, 3)))[0]
            side = len(patch)
            assert 32 <= side <= 160
            assert np.array_equal(photograph[top : top + side, left : left + side], patch)
        assert len({len(patch) for patch in patches}) > 90

    @pytest.mark.parametrize("name", ["letters", "patches"])
    def test_the_seed_fixes_them(self, name):
        first, again, other = (outliers(name, seed=seed, **GREY).images for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert len(first.unique(dim=0)) > 350

    def test_patches_without_scikit_learn(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
        with pytest.raises(DatasetError, match=r"pip install probattn\[digits\]"):
            outliers("patches", **GREY)
