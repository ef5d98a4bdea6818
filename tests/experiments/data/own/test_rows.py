"""Rows of CSV, TSV and JSON Lines files: content, lines, parts, and what is wrong with a file."""

import os

import pytest

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.rows import check_columns, read_file, read_parts, read_texts, texts


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def test_quoted_texts_keep_commas_and_line_breaks_and_each_row_has_its_first_line(tmp_path):
    path = write(tmp_path / "a.csv", 'text,label\n"one, two\nthree",x\n\nfour,y\n')
    rows = read_parts(path, kind="csv")["train"]
    assert list(rows) == ["text", "label"]
    assert texts(rows, "text") == ["one, two\nthree", "four"]
    assert list(rows.index) == [f"{path}, line 2", f"{path}, line 5"]


def test_a_byte_order_mark_windows_line_ends_and_long_texts_are_read(tmp_path):
    path = write(tmp_path / "a.csv", f"text,label\r\n{200_000 * 'a'},NA\r\n", "utf-8-sig")
    rows = read_file(path, kind="csv")
    assert (len(texts(rows, "text")[0]), texts(rows, "label")) == (200_000, ["NA"])


@pytest.mark.parametrize(("name", "delimiter", "between"), [("a.tsv", None, "\t"), ("a.csv", ";", ";")])
def test_cells_may_be_separated_by_other_characters(tmp_path, name, delimiter, between):
    path = write(tmp_path / name, f"text{between}label\na, b{between}x\n")
    assert texts(read_file(path, kind="csv", delimiter=delimiter), "text") == ["a, b"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (['5" nails', '"never closed', 'a "word"', 'closed"', '"x" y'], None),
        (['"whole"', '"a ""b"" c"', "plain"], ["whole", 'a "b" c', "plain"]),
        (['"two\nlines"', "plain"], ["two\nlines", "plain"]),
    ],
)
def test_a_quote_in_a_file_with_tabs_joins_no_rows(tmp_path, lines, expected):
    path = write(tmp_path / "a.tsv", "text\tlabel\n" + "".join(f"{line}\tx\n" for line in lines))
    assert texts(read_file(path, kind="csv"), "text") == (expected or lines)


def test_a_delimiter_at_the_end_of_the_first_line_names_no_column(tmp_path):
    for text in ("a,b,\n1,2\n", "a,b,,\n1,2,\n", "a,b\n1,2,,\n"):
        rows = read_file(write(tmp_path / "a.csv", text), kind="csv")
        assert rows.to_dict("records") == [{"a": "1", "b": "2"}]
    with pytest.raises(DatasetError, match="line 2 has 3 cells"):
        read_file(write(tmp_path / "a.csv", "a,b,\n1,2,3\n"), kind="csv")


def test_json_lines_have_texts_and_numbers(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a\u2028b", "label": 1}\n\n{"text": 2.5, "label": true}')
    rows = read_file(path, kind="jsonl")
    assert (texts(rows, "text"), texts(rows, "label")) == (["a\u2028b", "2.5"], ["1", "True"])
    assert list(rows.index) == [1, 3]


@pytest.mark.parametrize("names", [("train", "Validation", "test"), ("TRAINING", "dev", "Testing"), ("Train", "eval")])
def test_the_files_of_a_folder_are_parts(tmp_path, names, caplog):
    for name in (*names, "notes"):
        write(tmp_path / f"{name}.csv", f"text,label\n{name},x\n")
    parts = read_parts(tmp_path, kind="csv")
    assert [texts(rows, "text") for rows in parts.values()] == [[name] for name in names]
    assert list(parts) == ["train", "valid", "test"][: len(names)]
    assert "'notes.csv' have no name of a part" in caplog.text


def test_classes_that_look_alike_are_one_class(tmp_path):
    spellings = ["caf\u00e9 au lait", "cafe\u0301 au lait", "caf\u00e9\u200b au lait", "caf\u00e9\u00a0au lait"]
    lines = "".join(f"text {n},{label}\n" for n, label in enumerate(spellings * 3 + ["tea"] * 6))
    path = write(tmp_path / "a.csv", "text,label\u00a0\n" + lines)
    options = {"shares": {"valid": 0.1, "test": 0.2}, "seed": 0, "limit": None}
    data = read_texts(path, kind="csv", text_column="text", label_column="label", **options)
    assert data[0] == ("caf\u00e9 au lait", "tea")


def test_a_file_whose_name_is_not_utf_8_is_read_and_named(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.csv"
    with open(path, "wb") as file:
        file.write(b"text,label\none,x\n")
    rows = read_parts(tmp_path / os.fsdecode(b"caf\xe9.csv"), kind="csv")["train"]
    assert rows.index[0].endswith("caf\\xe9.csv, line 2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "its first line must name the columns"),
        ("a,b\n", "holds no rows"),
        ("a,a\n1,2\n", "'a', 'a'"),
        ("a,b\n1,2\n1,2,3\n", "line 3 has 3 cells"),
        ("a,b\n1,2\n1\n", "line 3 has 1 cells"),
        ('a,b\n1,2\n1,"2\n', "line 3: unexpected end of data"),
        ('a,b\n1,"2"x\n', "line 2: .*double the quotes"),
    ],
)
def test_a_csv_file_that_cannot_be_used_is_named_with_its_line(tmp_path, text, words):
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(DatasetError, match=words) as error:
        read_parts(path, kind="csv")
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("header", "words"),
    [("text;labels", "'text;labels'.*data.delimiter"), ("a,b", "'a', 'b'.*data.label_column")],
)
def test_a_missing_column_comes_with_advice(tmp_path, header, words):
    rows = read_parts(write(tmp_path / "a.csv", f"{header}\n{header}\n"), kind="csv")["train"]
    with pytest.raises(DatasetError, match=words):
        check_columns(rows, ["label"])


def test_a_wrong_byte_is_named_with_its_line(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,b\n1,2\n\xff,3\n")
    with pytest.raises(DatasetError, match="line 3 is not UTF-8: byte 0xff"):
        read_parts(tmp_path / "a.csv", kind="csv")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"text": 1}\n{"text": \n', "line 2 is no JSON object"),
        ('{"text": 1}\n[1]\n', "line 2 is no JSON object"),
        ('{"text": "", "label": 1}', "line 1: 'text' is ''"),
        ('{"label": 1}\n{"text": "a"}', "line 1: 'text' is nan"),
        ('{"text": ["a"], "label": 1}', "line 1: 'text' is .*expected a text"),
        ('{"text": NaN, "label": 1}', "line 1: 'text' is nan"),
    ],
)
def test_json_that_cannot_be_used_is_named_with_its_line(tmp_path, text, words):
    path = write(tmp_path / "a.jsonl", text)
    with pytest.raises(DatasetError, match=words):
        texts(read_parts(path, kind="jsonl")["train"], "text")


def test_folders_without_one_training_part_are_named(tmp_path):
    write(tmp_path / "test.csv", "a,b\n1,2\n")
    with pytest.raises(DatasetError, match="has no training part"):
        read_parts(tmp_path, kind="csv")
    for name in ("train.csv", "train.tsv"):
        write(tmp_path / name, "a,c\n1,2\n")
    with pytest.raises(DatasetError, match="train.csv and .*train.tsv are both the train part"):
        read_parts(tmp_path, kind="csv")
