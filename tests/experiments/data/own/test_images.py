"""Folders of images: parts, classes, and files that cannot be used."""

import os

import numpy as np
import pytest
from PIL import Image

from probattn.experiments.config.data import data_class
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.images import read
from probattn.experiments.sharing.inputs import read_images


def fill(folder, number, colour=(1, 2, 3), first=0):
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(first, first + number):
        Image.new("RGB", (8, 8), colour).save(folder / f"{index}.png")


def load(path, **options):
    return read(path, **({"image_size": 8, "shares": {"valid": 0.1, "test": 0.2}, "seed": 0, "limit": None} | options))


def test_one_folder_is_split_and_labels_are_the_folders_in_the_order_of_their_names(tmp_path):
    fill(tmp_path / "red", 10, (255, 9, 0))
    fill(tmp_path / "blue", 5, (0, 0, 255))
    fill(tmp_path / "blue" / "more", 5, (0, 0, 255), first=5)
    (tmp_path / ".DS_Store").write_bytes(b"")
    parts = load(tmp_path)
    assert parts[0] == ("blue", "red")
    assert [len(part) for part in parts[1:]] == [14, 2, 4]
    for part in parts[1:]:
        red = part.images[:, 0, 0, 0] == 255
        assert (part.labels == red.long()).all()


@pytest.mark.parametrize(
    "names",
    [
        ("train", "val", "test"),
        ("Training", "validation", "Testing"),
        ("TRAIN", "Eval", "test"),
        ("training", "dev", "Test"),
        ("training_set", "val-data", "test images"),
    ],
)
def test_folders_of_parts_are_the_parts_by_any_usual_name(tmp_path, names):
    for part, number in zip(names, (6, 3, 2), strict=True):
        fill(tmp_path / part / "a", number)
        fill(tmp_path / part / "b", number, (9, 9, 9))
    parts = load(tmp_path)
    assert parts[0] == ("a", "b")
    assert [len(part) for part in parts[1:]] == [12, 6, 4]


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (("cats", "dogs", "Testing/cats"), "no training part: .*'cats', 'dogs'"),
        (("car", "bus", "train"), "train/0.png is in no folder of a class"),
        (("train/a", "train/b", "Training/a"), "are both the train part"),
        (("Testing/a", "Testing/b", "val/a"), "no training part"),
    ],
)
def test_folders_that_may_be_parts_or_classes_are_shown_and_nothing_is_read(tmp_path, folders, words):
    for number, folder in enumerate(folders):
        fill(tmp_path / folder, 4, (number, 0, 99))
    with pytest.raises(DatasetError, match=words):
        load(tmp_path)


def test_a_class_may_be_called_like_a_part_inside_of_the_training_part(tmp_path):
    for number, name in enumerate(("bus", "car", "train")):
        fill(tmp_path / "train" / name, 6, (number, 9 * number, 99 - number))
    assert load(tmp_path)[0] == ("bus", "car", "train")


def test_names_of_classes_that_look_alike_are_one_class(tmp_path):
    for number, name in enumerate(("caf\u00e9", "cafe\u0301", "caf\u00e9\u200b", "tea")):
        fill(tmp_path / name, 5, (number, 9 * number, 99 - number))
    parts = load(tmp_path)
    assert parts[0] == ("caf\u00e9", "tea")
    assert sum(len(part) for part in parts[1:]) == 20


def test_names_that_are_not_utf8_are_read(tmp_path):
    for number, name in enumerate((b"caf\xe9", b"th\xe9")):
        fill(tmp_path / os.fsdecode(name), 5, (number, 9 * number, 99 - number))
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    (folder / "0.png").rename(folder / os.fsdecode(b"\xff.png"))
    parts = load(tmp_path)
    assert sum(len(part) for part in parts[1:]) == 10
    assert all(name.encode("utf-8") for name in parts[0])
    (folder / os.fsdecode(b"\xff.png")).write_bytes(b"no image")
    with pytest.raises(DatasetError, match=r"cannot read .*\\xff\.png"):
        load(tmp_path)
    inputs = read_images([folder], shape=(3, 8, 8))
    assert len(inputs.values) == 4
    assert [name.rpartition("/")[2] for name in inputs.failures] == ["\\xff.png"]


def test_transparent_icons_stand_on_the_background_of_the_setting(tmp_path):
    alpha = np.zeros((8, 8), np.uint8)
    alpha[2:6, 2:6] = 255
    for name, level in (("dark", 0), ("darker", 5)):
        (tmp_path / name).mkdir()
        icon = Image.merge("LA", [Image.new("L", (8, 8), level), Image.fromarray(alpha)])
        for number in range(5):
            icon.save(tmp_path / name / f"{number}.png")
    train = load(tmp_path, background=data_class("image-folder")(batch_size=2).background)[1]
    assert train.images[:, :, 0, 0].unique().tolist() == [255]
    assert train.images[:, :, 3, 3].unique().tolist() == [0, 5]
    with pytest.raises(DatasetError, match="cannot be seen on black: set another data.background=COLOUR"):
        load(tmp_path, background="black")
    with pytest.raises(DatasetError, match="wite"):
        load(tmp_path, background="wite")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda root: (root / "c").mkdir(), "empty: 'c'"),
        (lambda root: (root / "a" / "photo.heic").touch(), "cannot read .*photo.heic"),
        (lambda root: (root / "a" / "broken.png").write_bytes(b"not a png"), "cannot read .*broken.png"),
        (lambda root: fill(root, 1), "0.png is in no folder of a class"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_file(tmp_path, change, words):
    fill(tmp_path / "a", 4)
    fill(tmp_path / "b", 4, (9, 9, 9))
    change(tmp_path)
    with pytest.raises(DatasetError, match=words):
        load(tmp_path)


def test_a_class_of_the_test_part_only_is_named(tmp_path):
    for part in ("train", "test"):
        fill(tmp_path / part / "a", 4)
        fill(tmp_path / part / "b", 4)
    fill(tmp_path / "test" / "c", 1)
    with pytest.raises(DatasetError, match="c/0.png has the label 'c', which no training example has"):
        load(tmp_path)
