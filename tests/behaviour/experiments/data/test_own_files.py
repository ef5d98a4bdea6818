"""A user's own texts and images: from CSV, JSON Lines, folders and Hugging Face data sets to parts
with classes."""

import gzip
import itertools
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_files import write_table
from PIL import Image

from probattn.experiments.config.data import data_class
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import (
    class_indices,
    class_names,
    divide,
    find_parts,
    normal_name,
)
from probattn.experiments.data.own.images import read, read_hub_images
from probattn.experiments.data.own.rows import read_file, read_hub_texts, read_parts, texts

DIVISION = {"shares": {"valid": 0.1, "test": 0.2}, "seed": 0, "limit": None}


def divided(frame, **options):
    return divide({"train": frame}, **DIVISION | options)


def split(labels, **options):
    return divided(pd.DataFrame({"input": range(len(labels)), "label": labels}), **options)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(3, 40), min_size=2, max_size=5), st.integers(0, 5))
def test_every_example_is_in_one_part_and_every_class_in_each(sizes, seed):
    labels = [str(number) for number, size in enumerate(sizes) for _ in range(size)]
    parts = split(labels, seed=seed)
    assert sorted(sum((list(part.input) for part in parts.values()), [])) == list(
        range(len(labels))
    )
    for name, share in DIVISION["shares"].items():
        expected = {str(number): max(1, int(share * size)) for number, size in enumerate(sizes)}
        assert Counter(parts[name].label) == expected
    assert all(list(part.input) == sorted(part.input) for part in parts.values())


def test_a_limit_reduces_training_and_validation_part_and_not_the_test_part():
    parts = split(["a", "b"] * 100, limit=14)
    assert {name: len(part) for name, part in parts.items()} == {
        "train": 14,
        "valid": 2,
        "test": 40,
    }


def test_classes_and_parts_are_recognised_by_their_names():
    assert class_names(pd.Series(["10", "9", "-1"])) == ("-1", "9", "10")
    assert class_indices(pd.Series(["9", "-1"]), ("-1", "9", "10")).tolist() == [1, 0]
    for spelling in ("cafe\u0301 noir", "\ufeffcaf\u00e9\u00a0noir ", "caf\u00e9 \u200bnoir\u200d"):
        assert normal_name(spelling) == "caf\u00e9 noir"
    parts = {"train": "Training", "valid": "DEV", "test": "test images"}
    assert find_parts([*parts.values(), "cats"]) == parts
    with pytest.raises(DatasetError, match="both the train part"):
        find_parts(["Train", "training"])


@pytest.mark.parametrize("delimiter", [",", "|", ";", "\t"])
@pytest.mark.parametrize("label", ["{1}{0}{2}", "{2}{0}{1}"])
@pytest.mark.parametrize(
    "target", [lambda n: f"{n % 2}", lambda n: ("good", "bad")[n % 2], lambda n: f"{n}.5"]
)
def test_quotes_that_open_in_one_row_and_close_in_another_join_no_rows(
    tmp_path, delimiter, label, target
):
    cells = [f"text {n}" for n in range(40)]
    cells[3], cells[14] = '"opens here', 'closes there"'
    rows = [label.format(delimiter, cell, target(n)) for n, cell in enumerate(cells)]
    path = tmp_path / ("a.tsv" if delimiter == "\t" else "a.csv")
    path.write_text("\n".join([label.format(delimiter, "text", "label"), *rows]), encoding="utf-8")
    read_rows = read_file(path, kind="csv", delimiter=delimiter)
    assert list(read_rows["text"]) == cells
    path.write_text(path.read_text() + f"{delimiter}more\n", encoding="utf-8")  # one uneven row
    with pytest.raises(DatasetError, match="line (5|41)"):
        read_file(path, kind="csv", delimiter=delimiter)


@pytest.mark.parametrize("delimiter", [",", "|", ";", "\t"])
def test_quoted_cells_of_several_lines_are_one_cell(tmp_path, delimiter):
    written = [
        ("one, two\nthree", "x"),
        ("Dear all;\n\nno | yes", "y"),
        ('a "word"\tand\nmore', "x"),
        ("plain", "y"),
    ]
    pd.DataFrame(written * 3, columns=["text", "label"]).to_csv(
        tmp_path / "a.csv", sep=delimiter, index=False
    )
    rows = read_file(tmp_path / "a.csv", kind="csv", delimiter=delimiter)
    assert list(zip(rows["text"], rows["label"], strict=True)) == written * 3


def test_a_text_of_several_lines_in_a_file_of_one_column_is_said(tmp_path, caplog):
    (tmp_path / "a.csv").write_text('text\nfirst\n"second\nthird\nfourth"\n"fifth"\n')
    assert list(read_file(tmp_path / "a.csv", kind="csv")["text"])[1] == "second\nthird\nfourth"
    assert "a.csv, line 3" in caplog.text
    caplog.clear()
    (tmp_path / "a.csv").write_text('text\nfirst\n\n"second ""word"""\n5" nail\n')
    assert len(read_file(tmp_path / "a.csv", kind="csv")) == 3
    assert "several lines" not in caplog.text


OTHER_FORMATS = {
    "Excel": b"PK\x03\x04",
    "Parquet": b"PAR1",
    "gzip": b"\x1f\x8b",
    "bzip2": b"BZh9",
    "UTF-16": "text".encode("utf-16"),
    "JSON": b'[{"text": "a"}]',
}


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt", "a"])
@pytest.mark.parametrize("form", OTHER_FORMATS)
def test_another_format_is_named_with_what_to_do(tmp_path, name, form):
    (tmp_path / name).write_bytes(OTHER_FORMATS[form] + b"\x00,\n" * (form != "JSON"))
    with pytest.raises(DatasetError, match=f"{name}.* is {form}.*(save|name)"):
        read_file(tmp_path / name, kind="jsonl" if "json" in name else "csv")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_the_suffix_says_the_format_whatever_the_preset(tmp_path, kind):
    frame = pd.DataFrame({"text": ["one", "two"], "label": ["x", "y"]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "a.tsv.gz", index=False, sep="\t")
    for name in ("a.jsonl", "a.json", "a.ndjson.gz"):
        frame.to_json(tmp_path / name, orient="records", lines=True)
    for path in tmp_path.iterdir():
        assert read_file(path, kind=kind).to_numpy().tolist() == frame.to_numpy().tolist()


def test_json_lines_have_texts_and_numbers_and_files_of_a_folder_are_parts(tmp_path, caplog):
    lines = '{"text": "a\u2028b", "label": 1}\n\n{"text": 2.5, "label": true}'
    for name in ("train", "Validation", "notes"):
        (tmp_path / f"{name}.jsonl").write_text(lines, "utf-8")
    parts = read_parts(tmp_path, kind="jsonl")
    assert list(parts) == ["train", "valid"]
    assert (texts(parts["valid"], "text"), texts(parts["valid"], "label")) == (
        ["a\u2028b", "2.5"],
        ["1", "True"],
    )
    assert "notes.jsonl" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "text,b\n1,2\n1,2,3\n", "line 3 has 3 cells"),
        ("a.jsonl", '{"text": 1}\n{"text": \n', "line 2"),
        ("a.jsonl", '{"text": "", "label": 1}', "line 1"),
        ("a.jsonl", '{"text": "x"}\n\n{"text": null}', "line 3"),
        ("a.jsonl", '{"text": "x"}\n{"text": NaN}', "line 2"),
        ("a.jsonl", '{"text": "x"}\n{"text": ["y"]}', "line 2"),
        ("a.jsonl", '{"text": "x"}\n{"words": "y"}', "line 2"),
        ("a.csv", "text,b\nx,1\n,2\n", "line 3"),
        ("a.csv", 'text,b\n"x\ny",1\n" \u00a0 ",2\n', "line 4"),
        ("a.csv", 'text\nx\n""\n', "line 3"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, name, text, words):
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(DatasetError, match=words):
        texts(read_parts(tmp_path / name, kind=name[2:])["train"], "text")


@pytest.mark.parametrize("form", ["parquet", "xlsx"])
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_parquet_and_excel_files_are_read_as_the_csv_file_of_the_same_rows(tmp_path, form):
    pytest.importorskip({"parquet": "pyarrow", "xlsx": "openpyxl"}[form])
    frame = pd.DataFrame(
        {"text": ["one, two", "NA"], "count": [1, 2], "share": [0.1, 2.5], "flag": ["True", "x"]}
    )
    write_table(frame, tmp_path / f"train.{form}")
    for path in (tmp_path / f"train.{form}", tmp_path):
        rows = read_parts(path, kind="csv")["train"]
        assert rows.astype(str).to_numpy().tolist() == [
            ["one, two", "1", "0.1", "True"],
            ["NA", "2", "2.5", "x"],
        ]
        assert list(rows) == list(frame)


def test_of_several_sheets_the_first_is_read_and_the_others_are_said(tmp_path, caplog):
    pytest.importorskip("openpyxl")
    with pd.ExcelWriter(tmp_path / "a.xlsx") as file:
        for name in ("first", "second"):
            pd.DataFrame({"text": [f"{name} text"]}).to_excel(file, sheet_name=name, index=False)
    rows = read_parts(tmp_path / "a.xlsx", kind="csv")["train"]
    assert rows["text"].tolist() == ["first text"]
    assert "'first'" in caplog.text


def test_types_of_parquet_are_those_of_csv_and_missing_cells_are_empty(tmp_path):
    pytest.importorskip("pyarrow")
    days = pd.to_datetime(["2020-01-31", None, "2021-02-01"])
    frame = pd.DataFrame(
        {"n": [1, None, 3], "flag": [True, None, False], "day": days, "text": ["a", None, "c"]}
    )
    frame.to_parquet(tmp_path / "a.parquet")
    rows = read_file(tmp_path / "a.parquet", kind="csv")
    assert rows.iloc[0].tolist() == ["1", "True", "2020-01-31 00:00:00", "a"]
    assert rows.iloc[1].tolist() == [""] * 4


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.parquet", "a.xlsx"])
def test_a_damaged_file_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b"text,label\n" * 9)[:20])
    with pytest.raises(DatasetError, match=name.replace(".", r"\.")):
        read_file(tmp_path / name, kind="csv")


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


LAYOUTS = {
    "prefix": ["seg_train/{}", "seg_test/{}", "seg_pred/{}"],
    "year": ["train2017/{}", "val2017/{}"],
    "suffix": ["flowers_train/{}", "flowers_test/{}"],
    "folds": ["fold1/{}", "fold2/{}", "fold3/{}"],
    "letters": ["trainA", "trainB", "testA", "testB"],
    "short, flat": ["tr", "te"],
    "other language": ["entrenamiento/{}", "prueba/{}"],
    "sites": ["north/{}", "south/{}"],
    "number": ["01_train/{}", "02_test/{}"],
    "beside classes": ["cat", "dog", "test2017"],
    "in a part and beside it": ["cat", "dog", "Testing/cat"],
    "words": ["my-training-images/{}", "my-validation-images/{}"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders_that_may_be_parts_are_no_classes(tmp_path, layout):
    for number, (folder, name) in enumerate(itertools.product(LAYOUTS[layout], ["cat", "dog"])):
        fill(tmp_path / folder.format(name), 4, (number, 9, 99))
    with pytest.raises(DatasetError, match="train"):
        load(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ("dev", "ops", "sales"),
        ("latest", "contest"),
        ("train_station", "airport", "bus"),
        ("oval", "valley", "carnival"),
        ("cat/indoor", "cat/outdoor", "dog/left", "dog/right"),
        ("cat/images", "dog/images", "emu/images"),
        ("None", "NA", "other"),
    ],
)
def test_names_that_only_look_like_parts_or_missing_ones_are_classes(tmp_path, names):
    for number, name in enumerate(names):
        fill(tmp_path / name, 9, (20 * number, 9, 99))
    assert load(tmp_path)[0] == tuple(sorted({name.partition("/")[0] for name in names}))


def test_files_that_are_no_images_are_left_out_and_counted(tmp_path, caplog):
    for name, colour in (("cat", (255, 0, 0)), ("dog", (0, 0, 255))):
        fill(tmp_path / name, 6, colour)
        (tmp_path / name / "labels.json").write_text("{}")
        (tmp_path / name / "README").write_text("Photographs")
    (tmp_path / "README.md").write_text("# Pets")
    (tmp_path / "cat" / "photograph").write_bytes((tmp_path / "cat" / "0.png").read_bytes())
    assert sum(map(len, load(tmp_path)[1:])) == 13
    assert "5 files" in caplog.text
    (tmp_path / "dog" / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(DatasetError, match="broken"):
        load(tmp_path)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_grey_images_of_16_bits_keep_their_contrast(tmp_path, suffix):
    levels = np.full((8, 8), 600, dtype=np.uint16)
    levels[0, :2] = 200, 1000
    for name in ("cat/a", "cat/b", "dog/a", "dog/b"):
        path = tmp_path / f"{name}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(levels).save(path)
    train = load(tmp_path, shares={"valid": 0.0, "test": 0.0})[1]
    assert (train.images[:, 0, 0, :2] == torch.tensor([0, 255])).all()
    assert (train.images[:, 0, 1:].float() - 127.5).abs().max() <= 1


def frame_of(keys, labels, groups=None):
    frame = pd.DataFrame({"input": range(len(keys)), "label": labels, "key": keys})
    return frame if groups is None else frame.assign(group=groups)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=8, max_size=40), st.integers(0, 9))
def test_groups_and_equal_inputs_of_other_groups_stay_in_one_part(sizes, seed):
    groups = [f"patient {group}" for group, size in enumerate(sizes) for _ in range(size)]
    keys = list(range(len(groups)))
    keys[0] = keys[-1]  # the first and the last group share an input
    parts = divided(frame_of(keys, "x", groups), seed=seed)
    assert sum(map(len, parts.values())) == len(groups)
    for one, other in itertools.combinations(parts.values(), 2):
        assert not set(one.group) & set(other.group)
        assert not set(one.key) & set(other.key)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(6, 60), st.integers(1, 3), st.integers(0, 9), st.booleans())
def test_every_part_has_examples_however_few_inputs_differ(different, size, classes, seed, sort):
    keys = [number % different for number in range(size)]
    keys = sorted(keys) if sort else keys
    labels = [str(number % classes) for number in range(size)]
    parts = divided(frame_of(keys, labels), seed=seed)
    assert sum(map(len, parts.values())) == size
    if size >= 3 * classes:
        assert all(map(len, parts.values()))


@pytest.mark.parametrize("role", ["valid", "test"])
@pytest.mark.parametrize("shared", [0, 3])
def test_groups_of_training_in_a_part_that_is_given_are_said(caplog, role, shared):
    train = frame_of(range(40), ["a", "b"] * 20, [f"p{n // 4}" for n in range(40)])
    groups = [f"p{n}" for n in range(shared)] + [f"q{n}" for n in range(10 - shared)]
    other = frame_of(range(40, 50), ["a", "b"] * 5, groups)
    caplog.clear()
    parts = divide({"train": train, role: other}, **DIVISION)
    assert len(parts[role]) == 10
    assert (f"{role} part: " in caplog.text) == (shared > 0)


@pytest.mark.parametrize("number", [None, 6])
def test_rare_classes_stay_in_training_with_their_groups(number):
    labels = ["rare", *"ab" * 29, "once"]
    groups = number and [f"author {row % number}" for row in range(60)]
    for seed in range(20):
        parts = divided(frame_of(range(60), labels, groups), seed=seed)
        assert set(parts["train"].label) == set(labels)
        assert all(map(len, parts.values()))


def test_labels_without_training_examples_are_named_at_once():
    with pytest.raises(DatasetError, match="'c' .*'d' "):
        class_indices(pd.Series([*"cda"]), ("a", "b"))


def test_transparent_images_are_white_by_default(tmp_path):
    icon = Image.new("LA", (8, 8), (0, 0))
    icon.paste((0, 255), (2, 2, 6, 6))
    for name in ("dark", "darker"):
        (tmp_path / name).mkdir()
        for number in range(5):
            icon.save(tmp_path / name / f"{number}.png")
    background = data_class("image-folder")(batch_size=2).background
    assert (load(tmp_path, background=background)[1].images[:, :, 0, 0] == 255).all()


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
    for part in read_hub_images(tmp_path / "image", image_column="image", image_size=4, **common)[
        1:
    ]:
        assert (part.images[:, 0, 0, 0].long() % 2 == part.labels).all()
