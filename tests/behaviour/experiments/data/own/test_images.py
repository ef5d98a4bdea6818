"""Folders of images: parts, classes, and files that cannot be used."""

import numpy as np
import pytest
from PIL import Image

from probattn.experiments.config.data import data_class
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.images import read


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
        (("cats", "dogs", "Testing/cats"), "no training part, but 'cats', 'dogs': .* train"),
        (("car", "bus", "train"), "train/0.png is in no class's folder"),
    ],
)
def test_folders_that_may_be_parts_or_classes_are_shown_and_nothing_is_read(tmp_path, folders, words):
    for number, folder in enumerate(folders):
        fill(tmp_path / folder, 4, (number, 0, 99))
    with pytest.raises(DatasetError, match=words):
        load(tmp_path)


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda root: (root / "c").mkdir(), "empty are 'c'"),
        (lambda root: (root / "a" / "broken.png").write_bytes(b"not a png"), "cannot read .*broken.png"),
        (lambda root: fill(root, 1), "0.png is in no class's folder"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_file(tmp_path, change, words):
    fill(tmp_path / "a", 4)
    fill(tmp_path / "b", 4, (9, 9, 9))
    change(tmp_path)
    with pytest.raises(DatasetError, match=words):
        load(tmp_path)
