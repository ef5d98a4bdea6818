"""CIFAR-10 and CIFAR-100 from torchvision's files and from folders: parts, validation part and limit."""

import pickle

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10, CIFAR100

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images import cifar
from probattn.experiments.data.images.datasets import load
from probattn.experiments.data.images.labelled_images import channel_statistics

pytestmark = pytest.mark.usefixtures("small_cifar")
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN, TEST = 20, 3
"""Images per class of the small CIFAR-10."""


@pytest.fixture
def numbers(class_and_number):
    return lambda data: {tuple(row) for row in class_and_number(data).tolist()}


class TestLoad:
    @pytest.mark.parametrize("place", ["cifar10-jpeg", "cifar10", "."])
    def test_folders_of_images(self, tmp_path, place, write_folders, class_and_number, numbers):
        write_folders(tmp_path / place)
        data = load("cifar10", root=tmp_path)
        assert data.name == "cifar10"
        assert data.classes == CLASSES
        assert data.augment
        for part in (data.train, data.valid, data.test):
            assert torch.equal(class_and_number(part)[:, 0], part.labels)
        assert numbers(data.test) == {(label, 100 + index) for label in range(10) for index in range(TEST)}

    def test_jpeg_files_are_decoded_as_torchvisions_image_folder_does(self, tmp_path, write_folders):
        from torchvision.datasets import ImageFolder

        write_folders(tmp_path, suffix=".JPG")
        data = load("cifar10", root=tmp_path)
        reference = ImageFolder(tmp_path / "test")
        expected = np.stack([np.asarray(image) for image, _ in reference])
        assert torch.equal(data.test.images, torch.from_numpy(expected).permute(0, 3, 1, 2))
        assert data.test.labels.tolist() == reference.targets
        assert list(data.classes) == reference.classes

    def test_torchvisions_files(self, tmp_path, write_batches, class_and_number, numbers):
        write_batches(tmp_path)
        data = load("cifar10", root=tmp_path)
        assert data.classes == CLASSES
        assert torch.equal(class_and_number(data.test)[:, 0], data.test.labels)
        assert len(numbers(data.train) | numbers(data.valid)) == 10 * TRAIN
        assert numbers(data.test) == {(label, 100 + index) for label in range(10) for index in range(TEST)}

    def test_cifar100_uses_the_fine_labels(self, tmp_path, monkeypatch, class_and_number):
        folder = tmp_path / CIFAR100.base_folder
        folder.mkdir()
        for part, count in (("train", 20), ("test", 2)):
            fine = [label for label in range(100) for _ in range(count)]
            data = np.zeros((len(fine), 3, 32, 32), np.uint8)
            data[:, 0, :, :16], data[:, 2, :, :16] = np.array(fine)[:, None, None], 200
            data = data.reshape(len(fine), -1)
            (folder / part).write_bytes(pickle.dumps({"data": data, "fine_labels": fine}, protocol=2))
        names = [f"class {label:02}" for label in range(100)]
        (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}, protocol=2))
        monkeypatch.setattr(CIFAR100, "train_list", [["train", None]])
        monkeypatch.setattr(CIFAR100, "test_list", [["test", None]])
        monkeypatch.setattr(CIFAR100, "meta", {"filename": "meta", "key": "fine_label_names", "md5": None})
        data = load("cifar100", root=tmp_path)
        assert data.classes == tuple(names)
        assert torch.equal(class_and_number(data.train)[:, 0], data.train.labels)
        assert data.valid.labels.bincount().tolist() == [2] * 100
        assert data.augment

    def test_torchvisions_files_come_first_and_damaged_ones_are_passed_over(self, root, decoded, write_batches):
        write_batches(root)
        load("cifar10", root=root)
        assert decoded == []
        (root / CIFAR10.base_folder / "test_batch").unlink()
        load("cifar10", root=root)
        assert decoded == ["train", "test"]

    def test_download_where_there_is_a_network(self, tmp_path, monkeypatch, write_batches):
        monkeypatch.setattr(cifar, "download_and_extract", lambda *arguments, **options: write_batches(tmp_path))
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
    def test_is_a_stratified_tenth_cut_off_the_training_part(self, root, numbers):
        data = load("cifar10", root=root)
        assert data.train.labels.bincount().tolist() == [18] * 10
        assert data.valid.labels.bincount().tolist() == [2] * 10
        assert not numbers(data.train) & numbers(data.valid)
        assert numbers(data.train) | numbers(data.valid) == {(c, i) for c in range(10) for i in range(TRAIN)}

    def test_is_fixed_by_the_seed_which_leaves_the_test_part_alone(self, root, numbers):
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
            (90, (90, 10, 30)),
            (30, (30, 10, 30)),
            (4, (4, 10, 30)),
            (180, (180, 20, 30)),
            (999, (180, 20, 30)),
        ],
    )
    def test_cuts_training_and_validation_part_in_proportion_and_not_the_test_part(self, root, limit, sizes):
        data = load("cifar10", root=root, limit=limit)
        parts = (data.train, data.valid, data.test)
        assert tuple(len(part) for part in parts) == sizes
        for part in parts:
            counts = part.labels.bincount(minlength=10)
            assert counts.max() - counts.min() <= 1
        assert (data.mean, data.std) == channel_statistics(data.train.images)

    def test_keeps_the_parts_apart_and_a_smaller_one_inside_a_larger_one(self, root, numbers):
        small, large, whole = (load("cifar10", root=root, limit=limit) for limit in (25, 110, None))
        for part in ("train", "valid", "test"):
            inner, middle, outer = (numbers(getattr(data, part)) for data in (small, large, whole))
            assert inner < middle < outer or (part == "test" and inner == middle == outer)

    def test_follows_the_seed(self, root, numbers):
        first, again, other = (load("cifar10", root=root, limit=50, seed=seed) for seed in (0, 0, 1))
        assert numbers(first.train) == numbers(again.train) != numbers(other.train)
