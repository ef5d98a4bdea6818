import os
import pickle
import sys
from urllib.error import URLError
from zlib import crc32

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100

from probattn.experiments.data.images import cifar
from probattn.experiments.data.images.datasets import load
from probattn.experiments.data.images.images import DatasetError, Images, channel_statistics, split, stratified_order

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""In torchvision's order, that of the original batches.meta."""
TRAIN, TEST = 20, 3
"""Images a class of the small CIFAR-10 of these tests."""


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def picture(label, index):
    """A 32×32 RGB image that tells its class and its number."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:, :16] = (label, index, 200)
    return pixels


def told(data):
    """Class and number of each image, (n, 2), read from its pixels; checks channel order and orientation."""
    assert (data.images[:, 2, :, :16] == 200).all()
    assert (data.images[..., 16:] == 0).all()
    return data.images[:, :2, 0, 0].long()


def numbers(data):
    return {tuple(row) for row in told(data).tolist()}


def write_folders(folder, suffix=".png"):
    for part, count in (("train", TRAIN), ("test", TEST)):
        for label, name in reversed(list(enumerate(CLASSES))):
            (folder / part / name).mkdir(parents=True)
            for index in range(count):
                image = Image.fromarray(picture(label, index + 100 * (part == "test")))
                image.save(folder / part / name / f"{index:04}{suffix}")


def write_batches(root):
    """The small CIFAR-10 in torchvision's own format."""
    folder = root / CIFAR10.base_folder
    folder.mkdir(parents=True)
    for file, count, base in (("data_batch_1", TRAIN, 0), ("test_batch", TEST, 100)):
        pairs = [(label, base + index) for index in range(count) for label in range(10)]
        data = np.stack([picture(*pair).transpose(2, 0, 1).ravel() for pair in pairs])
        content = {"data": data, "labels": [label for label, _ in pairs]}
        (folder / file).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list(CLASSES)}, protocol=2))


def files(folder):
    return sorted(path for path in folder.rglob("*") if ".probattn-cache" not in path.parts)


@pytest.fixture(autouse=True)
def small_cifar(monkeypatch):
    """CIFAR-10 with few images and unchecked sums, and no network."""

    def fetch(*arguments, **options):
        raise URLError("no network")

    small = cifar.CIFAR["cifar10"]._replace(num_train=10 * TRAIN, num_test=10 * TEST)
    monkeypatch.setitem(cifar.CIFAR, "cifar10", small)
    monkeypatch.setattr(CIFAR10, "train_list", [["data_batch_1", None]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", None]])
    monkeypatch.setattr(CIFAR10, "meta", {"filename": "batches.meta", "key": "label_names", "md5": None})
    monkeypatch.setattr(cifar, "fetch", fetch)
    monkeypatch.delenv("PROBATTN_DATA", raising=False)


@pytest.fixture
def root(tmp_path):
    write_folders(tmp_path / "cifar10-jpeg")
    return tmp_path


@pytest.fixture
def decoded(monkeypatch):
    """The folders that were decoded, in order."""
    calls, decode = [], cifar._decode
    monkeypatch.setattr(cifar, "_decode", lambda folder, names: calls.append(folder.name) or decode(folder, names))
    return calls


class TestDigits:
    def test_every_digit_once_scaled_to_bytes(self):
        from sklearn.datasets import load_digits

        bunch, data = load_digits(), load("digits")
        expected = sorted(
            (label, *[round(value * 255 / 16) for value in image.ravel()])
            for image, label in zip(bunch.images, bunch.target.tolist(), strict=True)
        )
        found = sorted(
            (label, *image.flatten().tolist())
            for part in (data.train, data.valid, data.test)
            for image, label in zip(part.images, part.labels.tolist(), strict=True)
        )
        assert found == expected
        assert data.classes == tuple("0123456789")
        assert data.train.images.shape[1:] == (1, 8, 8)
        assert not data.augment

    def test_parts_are_stratified_60_20_20(self):
        data = load("digits")
        assert [len(part) for part in (data.train, data.valid, data.test)] == [1079, 359, 359]
        whole = sum(part.labels.bincount() for part in (data.train, data.valid, data.test))
        for part, share in ((data.train, 0.6), (data.valid, 0.2), (data.test, 0.2)):
            assert (part.labels.bincount() - share * whole).abs().max() <= 2

    def test_seed_fixes_the_parts(self):
        first, again, other = load("digits", seed=3), load("digits", seed=3), load("digits", seed=4)
        assert torch.equal(first.train.images, again.train.images)
        assert torch.equal(first.test.images, again.test.images)
        assert not torch.equal(first.train.images, other.train.images)
        assert not torch.equal(first.test.images, other.test.images)

    def test_without_scikit_learn(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
        with pytest.raises(DatasetError, match=r"pip install probattn\[digits\]"):
            load("digits")


class TestCuts:
    LABELS = torch.arange(4).repeat_interleave(torch.tensor([50, 50, 7, 1]))[torch.randperm(108, generator=seeded())]

    def test_every_prefix_holds_the_classes_in_proportion(self):
        labels = torch.arange(7).repeat(9)
        order = stratified_order(labels, generator=seeded())
        assert torch.equal(order.sort().values, torch.arange(63))
        for end in range(1, 64):
            counts = labels[order[:end]].bincount(minlength=7)
            assert counts.max() - counts.min() <= 1

    def test_uneven_classes(self):
        order = stratified_order(self.LABELS, generator=seeded())
        assert set(self.LABELS[order[:4]].tolist()) == {0, 1, 2, 3}
        assert self.LABELS[order[:54]].bincount().sub(torch.tensor([25, 25, 4, 1])).abs().max() <= 1

    def test_order_inside_a_class_is_random(self):
        labels = torch.zeros(50, dtype=torch.long)
        first, second = (stratified_order(labels, generator=seeded(seed)) for seed in (0, 1))
        assert not torch.equal(first, second)
        assert not torch.equal(first, torch.arange(50))

    def test_parts_are_disjoint_and_keep_the_order_of_the_data(self):
        data = Images(torch.arange(108, dtype=torch.uint8).view(-1, 1, 1, 1), self.LABELS)
        parts = [part.images.flatten().long() for part in split(data, sizes=(60, 30, 10), generator=seeded())]
        assert [len(part) for part in parts] == [60, 30, 10]
        assert len(set(torch.cat(parts).tolist())) == 100
        assert all((part.diff() > 0).all() for part in parts)

    def test_labels_follow_their_images(self):
        data = Images(torch.arange(108, dtype=torch.uint8).view(-1, 1, 1, 1), self.LABELS)
        (part,) = split(data, sizes=(40,), generator=seeded())
        assert torch.equal(part.labels, self.LABELS[part.images.flatten().long()])

    def test_too_many(self):
        data = Images(torch.zeros(5, 1, 1, 1, dtype=torch.uint8), torch.zeros(5, dtype=torch.long))
        with pytest.raises(ValueError, match=r"cannot draw 4 \+ 2 of 5 images"):
            split(data, sizes=(4, 2), generator=seeded())


def test_channel_statistics_are_those_of_the_scaled_pixels():
    images = torch.randint(0, 256, (11, 3, 4, 6), generator=seeded()).to(torch.uint8)
    images[:, 1] //= 2
    scaled = images.double() / 255
    mean, std = channel_statistics(images)
    torch.testing.assert_close(torch.tensor(mean).double(), scaled.mean((0, 2, 3)), atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.tensor(std).double(), scaled.std((0, 2, 3), unbiased=False), atol=1e-6, rtol=0)


class TestImages:
    def test_tensors_of_another_kind_are_refused(self):
        with pytest.raises(ValueError, match=r"images must be uint8 \(n, C, H, W\), got torch.float32 \(2, 1, 3, 3\)"):
            Images(torch.zeros(2, 1, 3, 3), torch.zeros(2, dtype=torch.long))
        with pytest.raises(ValueError, match=r"labels must be int64 \(2,\), got torch.int64 \(3,\)"):
            Images(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.zeros(3, dtype=torch.long))

    def test_select_and_to(self):
        data = Images(torch.arange(4, dtype=torch.uint8).view(-1, 1, 1, 1), torch.arange(4) * 10)
        chosen = data.select(torch.tensor([3, 1]))
        assert len(chosen) == 2
        assert chosen.images.flatten().tolist() == [3, 1]
        assert chosen.labels.tolist() == [30, 10]
        moved = data.to("meta")
        assert (moved.images.device.type, moved.labels.device.type) == ("meta", "meta")


class TestLoad:
    @pytest.mark.parametrize("place", ["cifar10-jpeg", "cifar10", "."])
    def test_folders_of_images(self, tmp_path, place):
        write_folders(tmp_path / place)
        data = load("cifar10", root=tmp_path)
        assert data.name == "cifar10"
        assert data.classes == CLASSES
        assert data.augment
        for part in (data.train, data.valid, data.test):
            assert torch.equal(told(part)[:, 0], part.labels)
        assert numbers(data.test) == {(label, 100 + index) for label in range(10) for index in range(TEST)}

    def test_jpeg_files_are_decoded_as_torchvisions_image_folder_does(self, tmp_path):
        from torchvision.datasets import ImageFolder

        write_folders(tmp_path, suffix=".JPG")
        data = load("cifar10", root=tmp_path)
        reference = ImageFolder(tmp_path / "test")
        expected = np.stack([np.asarray(image) for image, _ in reference])
        assert torch.equal(data.test.images, torch.from_numpy(expected).permute(0, 3, 1, 2))
        assert data.test.labels.tolist() == reference.targets
        assert list(data.classes) == reference.classes

    def test_torchvisions_files(self, tmp_path):
        write_batches(tmp_path)
        data = load("cifar10", root=tmp_path)
        assert data.classes == CLASSES
        assert torch.equal(told(data.test)[:, 0], data.test.labels)
        assert len(numbers(data.train) | numbers(data.valid)) == 10 * TRAIN
        assert numbers(data.test) == {(label, 100 + index) for label in range(10) for index in range(TEST)}

    def test_cifar100_uses_the_fine_labels(self, tmp_path, monkeypatch):
        folder = tmp_path / CIFAR100.base_folder
        folder.mkdir()
        for part, count in (("train", 20), ("test", 2)):
            fine = [label for label in range(100) for _ in range(count)]
            data = np.stack([picture(label, 0).transpose(2, 0, 1).ravel() for label in fine])
            (folder / part).write_bytes(pickle.dumps({"data": data, "fine_labels": fine}, protocol=2))
        names = [f"class {label:02}" for label in range(100)]
        (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}, protocol=2))
        monkeypatch.setattr(CIFAR100, "train_list", [["train", None]])
        monkeypatch.setattr(CIFAR100, "test_list", [["test", None]])
        monkeypatch.setattr(CIFAR100, "meta", {"filename": "meta", "key": "fine_label_names", "md5": None})
        data = load("cifar100", root=tmp_path)
        assert data.classes == tuple(names)
        assert torch.equal(told(data.train)[:, 0], data.train.labels)
        assert data.valid.labels.bincount().tolist() == [2] * 100
        assert data.augment

    def test_torchvisions_files_come_first_and_damaged_ones_are_passed_over(self, root, decoded):
        write_batches(root)
        load("cifar10", root=root)
        assert decoded == []
        (root / CIFAR10.base_folder / "test_batch").unlink()
        load("cifar10", root=root)
        assert decoded == ["train", "test"]

    def test_download_where_there_is_a_network(self, tmp_path, monkeypatch):
        monkeypatch.setattr(cifar, "fetch", lambda *arguments, **options: write_batches(tmp_path))
        assert len(load("cifar10", root=tmp_path).test) == 10 * TEST

    @pytest.mark.parametrize(
        ("argument", "variable", "expected"),
        [("a", "b", "a"), (None, "b", "b"), (None, "", "data"), (None, None, "data")],
    )
    def test_root_is_the_argument_else_the_environment_else_data(
        self, tmp_path, monkeypatch, argument, variable, expected
    ):
        monkeypatch.chdir(tmp_path)
        if variable is not None:
            monkeypatch.setenv("PROBATTN_DATA", variable)
        with pytest.raises(DatasetError) as error:
            load("cifar10", root=argument)
        assert str(error.value).startswith(f"CIFAR-10 is not in {tmp_path / expected}.")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"name": "mnist"}, "unknown data set 'mnist': choose one of digits, cifar10, cifar100"),
            ({"name": "digits", "limit": 0}, "limit must be at least 1, got 0"),
        ],
    )
    def test_bad_arguments(self, options, message):
        with pytest.raises(ValueError, match=message):
            load(**options)


class TestValidationPart:
    def test_is_a_stratified_tenth_cut_off_the_training_part(self, root):
        data = load("cifar10", root=root)
        assert data.train.labels.bincount().tolist() == [18] * 10
        assert data.valid.labels.bincount().tolist() == [2] * 10
        assert not numbers(data.train) & numbers(data.valid)
        assert numbers(data.train) | numbers(data.valid) == {(c, i) for c in range(10) for i in range(TRAIN)}

    def test_is_fixed_by_the_seed_which_leaves_the_test_part_alone(self, root):
        first, again, other = (load("cifar10", root=root, seed=seed) for seed in (0, 0, 1))
        assert torch.equal(first.valid.images, again.valid.images)
        assert numbers(first.valid) != numbers(other.valid)
        assert torch.equal(first.test.images, other.test.images)

    def test_does_not_count_in_mean_and_std(self, root):
        data = load("cifar10", root=root)
        assert (data.mean, data.std) == channel_statistics(data.train.images)


class TestLimit:
    @pytest.mark.parametrize(
        ("limit", "sizes"),
        [
            (90, (90, 10, 15)),
            (30, (30, 10, 10)),
            (4, (4, 10, 10)),
            (180, (180, 20, 30)),
            (999, (180, 20, 30)),
        ],
    )
    def test_cuts_every_part_in_proportion(self, root, limit, sizes):
        data = load("cifar10", root=root, limit=limit)
        parts = (data.train, data.valid, data.test)
        assert tuple(len(part) for part in parts) == sizes
        for part in parts:
            counts = part.labels.bincount(minlength=10)
            assert counts.max() - counts.min() <= 1
        assert (data.mean, data.std) == channel_statistics(data.train.images)

    def test_keeps_the_parts_apart_and_a_smaller_one_inside_a_larger_one(self, root):
        small, large, whole = (load("cifar10", root=root, limit=limit) for limit in (25, 110, None))
        for part in ("train", "valid", "test"):
            inner, middle, outer = (numbers(getattr(data, part)) for data in (small, large, whole))
            assert inner < middle < outer

    def test_follows_the_seed(self, root):
        first, again, other = (load("cifar10", root=root, limit=50, seed=seed) for seed in (0, 0, 1))
        assert numbers(first.train) == numbers(again.train) != numbers(other.train)


class TestCache:
    def cache(self, root):
        (path,) = (root / ".probattn-cache").iterdir()
        assert path.name == "cifar10.pt"
        return path

    def test_images_are_decoded_once(self, root, decoded):
        first, second = load("cifar10", root=root), load("cifar10", root=root, seed=1)
        assert decoded == ["train", "test"]
        assert self.cache(root)
        assert torch.equal(first.test.images, second.test.images)
        assert numbers(first.train) | numbers(first.valid) == numbers(second.train) | numbers(second.valid)

    @pytest.mark.parametrize("folder", ["train", "test", "train/cat", "test/truck"])
    def test_a_newer_folder_is_decoded_anew(self, root, decoded, folder):
        load("cifar10", root=root)
        changed = root / "cifar10-jpeg" / folder
        os.utime(changed, ns=(2**61, 2**61))
        load("cifar10", root=root)
        load("cifar10", root=root)
        assert decoded == ["train", "test"] * 2

    def test_another_number_of_files_is_decoded_anew(self, root, decoded, monkeypatch):
        load("cifar10", root=root)
        for folder in (root / "cifar10-jpeg" / "test").iterdir():
            before = folder.stat()
            (folder / "0000.png").unlink()
            os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
        small = cifar.CIFAR["cifar10"]._replace(num_test=10 * (TEST - 1))
        monkeypatch.setitem(cifar.CIFAR, "cifar10", small)
        assert len(load("cifar10", root=root).test) == 10 * (TEST - 1)
        assert decoded == ["train", "test"] * 2

    def test_another_folder_is_decoded_anew(self, root, decoded):
        load("cifar10", root=root)
        (root / "cifar10-jpeg").rename(root / "cifar10")
        load("cifar10", root=root)
        assert decoded == ["train", "test"] * 2

    @pytest.mark.parametrize(
        "damage",
        [
            lambda whole: whole[: len(whole) // 2],
            lambda whole: b"",
            lambda whole: b"garbage" * 100,
            lambda whole: pickle.dumps([1, 2, 3]),
        ],
        ids=["half", "empty", "garbage", "pickle"],
    )
    def test_a_damaged_cache_is_made_anew(self, root, decoded, damage):
        expected = load("cifar10", root=root)
        path = self.cache(root)
        path.write_bytes(damage(path.read_bytes()))
        found = load("cifar10", root=root)
        assert torch.equal(found.train.images, expected.train.images)
        load("cifar10", root=root)
        assert decoded == ["train", "test"] * 2
        assert self.cache(root)

    def test_a_root_that_cannot_be_written_is_no_error(self, root):
        (root / ".probattn-cache").write_text("a file, where the folder would be")
        assert len(load("cifar10", root=root).test) == 10 * TEST

    def test_a_write_that_fails_leaves_nothing_behind(self, root, monkeypatch):
        def save(content, path):
            path.write_bytes(b"half")
            raise OSError("no space left on device")

        monkeypatch.setattr(torch, "save", save)
        assert len(load("cifar10", root=root).test) == 10 * TEST
        assert list((root / ".probattn-cache").iterdir()) == []


class TestErrors:
    """Each names what is wrong and what to do, and leaves the disk as it was."""

    def fails(self, root):
        before = files(root)
        with pytest.raises(DatasetError) as error:
            load("cifar10", root=root)
        assert files(root) == before
        return str(error.value)

    def test_nothing_there(self, tmp_path):
        message = self.fails(tmp_path)
        places = ("cifar10-jpeg", "cifar10", "")
        assert f"in {', '.join(str(tmp_path / place) for place in places)}. " in message
        assert "cifar-10-batches-py (absent)" in message
        assert "no network" in message
        assert "--data" in message
        assert "PROBATTN_DATA" in message

    def test_damaged_torchvision_files(self, tmp_path):
        write_batches(tmp_path)
        (tmp_path / CIFAR10.base_folder / "data_batch_1").unlink()
        assert "cifar-10-batches-py (incomplete or damaged)" in self.fails(tmp_path)

    def test_too_few_images(self, root):
        (root / "cifar10-jpeg" / "train" / "cat" / "0003.png").unlink()
        message = self.fails(root)
        assert message.startswith(f"{root / 'cifar10-jpeg'} is not a complete CIFAR-10: ")
        assert "train/ holds 199 images in 10 classes, expected 200 in 10, 20 a class (found: cat 19)" in message
        assert "test/" not in message
        assert "Unpack it there again" in message
        assert "--data" in message

    def test_one_class_too_many_images_and_another_too_few(self, root):
        cat, dog = (root / "cifar10-jpeg" / "train" / name for name in ("cat", "dog"))
        (cat / "0003.png").rename(dog / "moved.png")
        assert "(found: cat 19, dog 21)" in self.fails(root)

    def test_a_missing_class(self, root):
        folder = root / "cifar10-jpeg" / "test" / "dog"
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        message = self.fails(root)
        assert "test/ holds 27 images in 9 classes, expected 30 in 10, 3 a class; test/ lacks dog." in message

    def test_classes_of_other_names(self, root):
        (root / "cifar10-jpeg" / "test" / "dog").rename(root / "cifar10-jpeg" / "test" / "hound")
        assert "train/ lacks hound; test/ lacks dog." in self.fails(root)

    def test_no_test_part(self, root):
        (root / "cifar10-jpeg" / "test").rename(root / "elsewhere")
        message = self.fails(root)
        assert "test/ holds 0 images in 0 classes" in message
        assert "test/ lacks airplane, automobile, bird, cat, deer and 5 more" in message

    def test_hidden_files_do_not_count(self, root):
        folder = root / "cifar10-jpeg" / "train"
        (folder / ".thumbnails").mkdir()
        for name in ("._0000.png", "Thumbs.db"):
            (folder / "cat" / name).touch()
        assert len(load("cifar10", root=root).test) == 10 * TEST

    @pytest.mark.parametrize("keep", [0, 0.1, 0.5, 0.8])
    @pytest.mark.parametrize("suffix", [".png", ".jpg"])
    def test_a_damaged_image_is_named(self, tmp_path, suffix, keep):
        write_folders(tmp_path, suffix)
        path = tmp_path / "test" / "frog" / f"0001{suffix}"
        whole = path.read_bytes()
        path.write_bytes(whole[: round(keep * len(whole))])
        assert f"cannot decode {path}: " in self.fails(tmp_path)
        assert not (tmp_path / ".probattn-cache").exists()

    @pytest.mark.parametrize(
        ("chunks", "reason"),
        [
            (b"\0\0\0\1IHDR\0" + crc32(b"IHDR\0").to_bytes(4), "Truncated IHDR chunk"),
            (b"\0\0\0\0IDAT\0\0\0\0I?ND", "broken PNG file"),
        ],
        ids=["length", "type"],
    )
    def test_an_image_with_a_broken_chunk_is_named(self, root, chunks, reason):
        path = root / "cifar10-jpeg" / "test" / "frog" / "0001.png"
        path.write_bytes(path.read_bytes()[:33] + chunks)  # what follows the signature and the header
        assert f"cannot decode {path}: {reason}" in self.fails(root)

    @pytest.mark.parametrize(
        ("mode", "size", "found"),
        [("RGB", (28, 32), "RGB 28×32"), ("L", (32, 32), "L 32×32"), ("RGBA", (32, 32), "RGBA 32×32")],
    )
    def test_an_image_of_another_kind_is_named(self, root, mode, size, found):
        path = root / "cifar10-jpeg" / "train" / "ship" / "0007.png"
        Image.new(mode, size).save(path)
        assert self.fails(root) == f"{path} is {found}, expected RGB 32×32"
