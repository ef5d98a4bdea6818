"""SVHN and archives: small sets in the layouts of torchvision and pytorch-ood."""

import hashlib
import sys
import tarfile

import numpy as np
import pytest
import scipy.io
from PIL import Image
from pytorch_ood.dataset import img
from torchvision.datasets import SVHN

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.ood import downloads
from probattn.experiments.data.ood.datasets import load
from probattn.inference.imports import MissingExtraError

RGB = {"size": 32, "channels": 3, "in_distribution": "cifar10"}


@pytest.fixture
def small_archives(monkeypatch):
    """The archives hold three images each."""
    for name, archive in downloads.ARCHIVES.items():
        monkeypatch.setitem(downloads.ARCHIVES, name, archive._replace(num_images=3))


def noise(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


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
    def test_is_read(self, tmp_path, mat, place, pixels_of):
        mat(tmp_path / place)
        data = load("svhn", root=tmp_path, **RGB)
        assert np.array_equal(pixels_of(data), self.PIXELS)
        assert data.labels.tolist() == [-1] * 5

    def test_is_downloaded_to_a_folder_of_its_own(self, tmp_path, mat, monkeypatch):
        monkeypatch.setattr(SVHN, "download", lambda self: mat(tmp_path / "svhn"))
        assert len(load("svhn", root=tmp_path, **RGB)) == 5

    def test_damaged(self, tmp_path):
        (tmp_path / "test_32x32.mat").write_bytes(b"half")
        with pytest.raises(DatasetError, match=r"test_32x32\.mat is damaged: .* Remove it and put http.*test_32x32"):
            load("svhn", root=tmp_path, **RGB)
        assert (tmp_path / "test_32x32.mat").read_bytes() == b"half"

    @pytest.mark.parametrize("by", ["argument", "variable", "default"])
    def test_missing(self, tmp_path, monkeypatch, by):
        monkeypatch.chdir(tmp_path)
        root = tmp_path / {"argument": "a", "variable": "v", "default": "data"}[by]
        if by != "default":
            monkeypatch.setenv("PROBATTN_DATA", str(tmp_path / "v"))
            root.mkdir()
        message = (
            rf"SVHN is not in {root}\. Looked for test_32x32\.mat in {root}/svhn, {root}\. "
            r"The download failed: .*no network.*--data or the environment variable PROBATTN_DATA"
        )
        with pytest.raises(DatasetError, match=message):
            load("svhn", root=root if by == "argument" else None, **RGB)


@pytest.mark.usefixtures("small_archives")
class TestArchives:
    SOURCES = {name: archive for name, archive in downloads.ARCHIVES.items() if archive.source}

    @pytest.mark.parametrize("name", downloads.ARCHIVES)
    def test_unpacked_needs_no_network(self, tmp_path, name, write, pixels_of):
        expected = write(tmp_path / downloads.ARCHIVES[name].folder)
        assert np.array_equal(pixels_of(load(name, root=tmp_path, **RGB)), expected)

    @pytest.mark.parametrize("name", SOURCES)
    def test_the_folder_is_the_one_pytorch_ood_unpacks(self, name):
        archive = self.SOURCES[name]
        assert getattr(img, archive.source).base_folder.rstrip("/") == archive.folder

    @pytest.mark.parametrize("name", SOURCES)
    def test_packed_needs_no_network(self, tmp_path, monkeypatch, name, write, pixels_of):
        archive, source = self.SOURCES[name], getattr(img, self.SOURCES[name].source)
        expected = write(tmp_path / "made" / archive.folder / "class", shape=(48, 32, 3))
        with tarfile.open(tmp_path / source.filename, "w:gz") as file:
            file.add(tmp_path / "made", arcname=".")
        digest = hashlib.md5((tmp_path / source.filename).read_bytes()).hexdigest()
        monkeypatch.setattr(source, "tgz_md5", digest)
        found = pixels_of(load(name, root=tmp_path, **RGB))
        resized = [np.asarray(Image.fromarray(each).resize((32, 32), Image.Resampling.BILINEAR)) for each in expected]
        assert np.array_equal(found, np.stack(resized))

    def test_the_classes_of_textures_are_one_set(self, tmp_path, write):
        for name in ("banded", "blotchy", "zigzagged"):
            write(tmp_path / "dtd" / "images" / name, count=2, suffix=".jpg")
        assert len(load("textures", root=tmp_path, **RGB)) == 6

    def test_half_missing(self, tmp_path, write):
        folder = tmp_path / "LSUN" / "test"
        write(folder, count=2)
        message = (
            rf"{folder} is not a complete LSUN-crop: it holds 2 images, expected 3\. Remove it and unpack it again"
        )
        with pytest.raises(DatasetError, match=message):
            load("lsun-crop", root=tmp_path, limit=1, **RGB)

    @pytest.mark.parametrize("name", SOURCES)
    def test_missing(self, tmp_path, name):
        archive, source = self.SOURCES[name], getattr(img, self.SOURCES[name].source)
        message = (
            rf"{archive.title} is not in {tmp_path}\. Looked for images in {tmp_path / archive.folder}, "
            rf"then for {source.filename} in {tmp_path}\. The download failed: .*no network.*Put http"
        )
        with pytest.raises(DatasetError, match=message):
            load(name, root=tmp_path, **RGB)

    def test_missing_without_the_extra(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "pytorch_ood.dataset", None)
        with pytest.raises(MissingExtraError, match=r"unpack them there.*pip install 'probattn\[ood\]'"):
            load("textures", root=tmp_path, **RGB)

    def test_lsun_itself_must_be_exported(self, tmp_path):
        with pytest.raises(DatasetError, match=rf"LSUN is not in {tmp_path}\. .*lsun-test\. Export the test images"):
            load("lsun", root=tmp_path, **RGB)


def test_whole_archives_hold_what_their_authors_say():
    counts = {name: archive.num_images for name, archive in downloads.ARCHIVES.items()}
    assert counts == dict.fromkeys(counts, 10_000) | {"textures": 5_640}
