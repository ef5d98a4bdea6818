"""Folders of images: parts, pixels, and files that cannot be used."""

import numpy as np
import pytest
from PIL import Image

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.images.files import pixels
from probattn.experiments.data.own.examples import Shares
from probattn.experiments.data.own.images import read


def fill(folder, number, colour=(1, 2, 3), size=(8, 8), first=0):
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(first, first + number):
        Image.new("RGB", size, colour).save(folder / f"{at}.png")


def load(path, **options):
    return read(path, **({"image_size": 8, "shares": Shares(0.1, 0.2), "seed": 0, "limit": None} | options))


def test_one_folder_is_split_and_labels_are_the_folders_in_the_order_of_their_names(tmp_path):
    fill(tmp_path / "red", 10, (255, 9, 0))
    fill(tmp_path / "blue", 5, (0, 0, 255))
    fill(tmp_path / "blue" / "more", 5, (0, 0, 255), first=5)
    (tmp_path / ".DS_Store").write_bytes(b"")
    parts = load(tmp_path)
    assert parts.classes == ("blue", "red")
    assert [len(part) for part in parts[1:]] == [14, 2, 4]
    for part in parts[1:]:
        red = part.images[:, 0, 0, 0] == 255
        assert (part.labels == red.long()).all()


def test_folders_of_parts_are_the_parts(tmp_path):
    for part, number in (("train", 6), ("val", 3), ("test", 2)):
        fill(tmp_path / part / "a", number)
        fill(tmp_path / part / "b", number, (9, 9, 9))
    assert [len(part) for part in load(tmp_path)[1:]] == [12, 6, 4]


def test_linked_folders_are_read_and_circles_of_links_named(tmp_path):
    fill(tmp_path / "elsewhere", 4)
    for name in ("a", "b"):
        fill(tmp_path / "data" / name, 6, (9, 9, 9) if name == "b" else (0, 99, 200))
    (tmp_path / "data" / "a" / "more").symlink_to(tmp_path / "elsewhere")
    assert sum(len(part) for part in load(tmp_path / "data")[1:]) == 16
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "data" / "a")
    with pytest.raises(DatasetError, match="back is a link to a folder that it is in"):
        load(tmp_path / "data")


def test_the_shorter_side_is_scaled_and_the_middle_kept():
    wide = np.zeros((4, 12, 3), dtype=np.uint8)
    wide[:, 4:8] = 200  # the middle square
    assert (pixels(Image.fromarray(wide), (3, 4, 4)) == 200).all()
    assert pixels(Image.fromarray(wide.transpose(1, 0, 2)), (3, 4, 4)).min() == 200
    assert pixels(Image.new("L", (5, 7), 30), (3, 2, 2)).tolist() == [[[30, 30], [30, 30]]] * 3
    with pytest.raises(ValueError, match="more than 8 bits"):
        pixels(Image.fromarray(np.full((4, 4), 40_000, dtype=np.uint16)), (3, 4, 4))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda root: (root / "c").mkdir(), "the class 'c' has no images"),
        (lambda root: (root / "a" / "notes.txt").write_text("mine"), "notes.txt has none of the suffixes of images"),
        (lambda root: (root / "a" / "broken.png").write_bytes(b"not a png"), "cannot decode .*broken.png"),
        (lambda root: fill(root, 1), "0.png lies outside of the classes' folders"),
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
