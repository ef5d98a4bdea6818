"""A user's own texts and images: from CSV, JSON Lines, folders and Hugging Face data sets to parts with classes."""

from collections import Counter

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from probattn.experiments.config.data import data_class
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import class_indices, class_names, divide, find_parts, normal_name
from probattn.experiments.data.own.images import read, read_hub_images
from probattn.experiments.data.own.rows import read_file, read_hub_texts, read_parts, texts

DIVISION = {"shares": {"valid": 0.1, "test": 0.2}, "seed": 0, "limit": None}


def split(labels, *, seed=0, limit=None):
    frame = pd.DataFrame({"input": range(len(labels)), "label": labels})
    return divide({"train": frame}, shares=DIVISION["shares"], seed=seed, limit=limit)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(3, 40), min_size=2, max_size=5), st.integers(0, 5))
def test_every_example_is_in_one_part_and_every_class_in_each(sizes, seed):
    labels = [str(number) for number, size in enumerate(sizes) for _ in range(size)]
    parts = split(labels, seed=seed)
    assert sorted(sum((list(part.input) for part in parts.values()), [])) == list(range(len(labels)))
    for name, share in DIVISION["shares"].items():
        expected = {str(number): max(1, int(share * size)) for number, size in enumerate(sizes)}
        assert Counter(parts[name].label) == expected
    assert all(list(part.input) == sorted(part.input) for part in parts.values())


def test_a_limit_reduces_training_and_validation_part_and_not_the_test_part():
    parts = split(["a", "b"] * 100, limit=14)
    assert {name: len(part) for name, part in parts.items()} == {"train": 14, "valid": 2, "test": 40}


def test_classes_and_parts_are_recognised_by_their_names():
    assert class_names(pd.Series(["10", "9", "-1"])) == ("-1", "9", "10")
    assert class_indices(pd.Series(["9", "-1"]), ("-1", "9", "10")).tolist() == [1, 0]
    for spelling in ("cafe\u0301 noir", "\ufeffcaf\u00e9\u00a0noir ", "caf\u00e9 \u200bnoir\u200d"):
        assert normal_name(spelling) == "caf\u00e9 noir"
    parts = {"train": "Training", "valid": "DEV", "test": "test images"}
    assert find_parts([*parts.values(), "cats"]) == parts
    with pytest.raises(DatasetError, match="both the train part"):
        find_parts(["Train", "training"])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", '"one, two\nthree",x\n\nfour,y\n', ["one, two\nthree", "four"]),
        ("a.tsv", '5" nails\tx\n"never closed\tx\na "word"\tx\n', ['5" nails', '"never closed', 'a "word"']),
    ],
)
def test_quotes_join_no_rows_and_split_none(tmp_path, name, text, expected):
    header = "text\tlabel\n" if name == "a.tsv" else "text,label\n"
    (tmp_path / name).write_bytes((header + text).encode())
    rows = read_file(tmp_path / name, kind="csv")
    assert texts(rows, "text") == expected


def test_json_lines_have_texts_and_numbers_and_files_of_a_folder_are_parts(tmp_path, caplog):
    lines = '{"text": "a\u2028b", "label": 1}\n\n{"text": 2.5, "label": true}'
    for name in ("train", "Validation", "notes"):
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    parts = read_parts(tmp_path, kind="jsonl")
    assert list(parts) == ["train", "valid"]
    assert (texts(parts["valid"], "text"), texts(parts["valid"], "label")) == (["a\u2028b", "2.5"], ["1", "True"])
    assert "notes.jsonl" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "text,b\n1,2\n1,2,3\n", "line 3 has 3 cells"),
        ("a.jsonl", '{"text": 1}\n{"text": \n', "line 2"),
        ("a.jsonl", '{"text": "", "label": 1}', "line 1"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, name, text, words):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DatasetError, match=words):
        texts(read_parts(tmp_path / name, kind=name[2:])["train"], "text")


def fill(folder, number, colour=(1, 2, 3)):
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(number):
        Image.new("RGB", (8, 8), colour).save(folder / f"{index}.png")


def load(path, **options):
    return read(path, **({"image_size": 8} | DIVISION | options))


def test_one_folder_of_images_is_split_and_labels_are_the_folders(tmp_path):
    fill(tmp_path / "red", 10, (255, 9, 0))
    fill(tmp_path / "blue", 5, (0, 0, 255))
    fill(tmp_path / "blue" / "more", 5, (0, 0, 255))
    classes, *parts = load(tmp_path)
    assert classes == ("blue", "red")
    assert [len(part) for part in parts] == [14, 2, 4]
    for part in parts:
        assert (part.labels == (part.images[:, 0, 0, 0] == 255).long()).all()


def test_folders_of_parts_are_the_parts(tmp_path):
    for part, number in (("training_set", 6), ("val-data", 3), ("Testing", 2)):
        fill(tmp_path / part / "a", number)
        fill(tmp_path / part / "b", number, (9, 9, 9))
    classes, *parts = load(tmp_path)
    assert classes == ("a", "b")
    assert [len(part) for part in parts] == [12, 6, 4]


@pytest.mark.parametrize("folders", [("cats", "dogs", "Testing/cats"), ("car", "bus", "train")])
def test_folders_that_may_be_parts_or_classes_are_an_error(tmp_path, folders):
    for number, folder in enumerate(folders):
        fill(tmp_path / folder, 4, (number, 0, 99))
    with pytest.raises(DatasetError, match="train"):
        load(tmp_path)


def test_transparent_icons_stand_on_the_background_of_the_setting(tmp_path):
    icon = Image.new("LA", (8, 8), (0, 0))
    icon.paste((0, 255), (2, 2, 6, 6))
    for name in ("dark", "darker"):
        (tmp_path / name).mkdir()
        for number in range(5):
            icon.save(tmp_path / name / f"{number}.png")
    train = load(tmp_path, background=data_class("image-folder")(batch_size=2).background)[1]
    assert (train.images[:, :, 0, 0].unique().tolist(), train.images[:, :, 3, 3].unique().tolist()) == ([255], [0])
    with pytest.raises(DatasetError, match="data.background"):
        load(tmp_path, background="black")


def test_hugging_face_data_sets_of_texts_and_images_are_read_from_disk(tmp_path):
    datasets = pytest.importorskip("datasets")
    for n in range(12):
        Image.new("RGB", (6, 6), (n, 9, 9)).save(tmp_path / f"{n}.png")
    labels = datasets.ClassLabel(names=["no", "yes"])
    for name, feature, column in (
        ("text", datasets.Value("string"), [f"text {n}" for n in range(12)]),
        ("image", datasets.Image(), [str(tmp_path / f"{n}.png") for n in range(12)]),
    ):
        features = datasets.Features({name: feature, "label": labels})
        content = {name: column, "label": [n % 2 for n in range(12)]}
        datasets.Dataset.from_dict(content, features=features).save_to_disk(str(tmp_path / name))
    common = DIVISION | {"label_column": "label", "subset": None}
    classes, *parts = read_hub_texts(tmp_path / "text", text_column="text", **common)
    assert classes == ("no", "yes")
    for part in parts:
        assert [int(text.split()[1]) % 2 for text in part.texts] == part.labels.tolist()
    for part in read_hub_images(tmp_path / "image", image_column="image", image_size=4, **common)[1:]:
        assert (part.images[:, 0, 0, 0].long() % 2 == part.labels).all()
