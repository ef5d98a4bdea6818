"""Rows of CSV and JSON Lines files: content, lines, and what is wrong with a file."""

import pytest

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.rows import read_parts


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def test_quoted_texts_keep_commas_and_line_breaks_and_each_row_has_its_first_line(tmp_path):
    path = write(tmp_path / "a.csv", 'text,label\n"one, two\nthree",x\n\nfour,y\n')
    rows = read_parts(path, kind="csv")["train"]
    assert rows.columns == ("text", "label")
    assert rows.text("text") == ["one, two\nthree", "four"]
    assert rows.places == [f"{path}, line 2", f"{path}, line 5"]


def test_a_byte_order_mark_and_windows_line_ends_are_no_content(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\r\nhello,x\r\n", "utf-8-sig")
    rows = read_parts(path, kind="csv")["train"]
    assert (rows.text("text"), rows.text("label")) == (["hello"], ["x"])


@pytest.mark.parametrize(("name", "delimiter", "between"), [("a.tsv", None, "\t"), ("a.csv", ";", ";")])
def test_cells_may_be_separated_by_other_characters(tmp_path, name, delimiter, between):
    path = write(tmp_path / name, f"text{between}label\na, b{between}x\n")
    assert read_parts(path, kind="csv", delimiter=delimiter)["train"].text("text") == ["a, b"]


def test_json_lines_have_texts_and_numbers(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a\u2028b", "label": 1}\n\n{"text": 2.5, "label": true}')
    rows = read_parts(path, kind="jsonl")["train"]
    assert (rows.text("text"), rows.text("label")) == (["a\u2028b", "2.5"], ["1", "True"])
    assert rows.lines == [1, 3]


def test_the_files_of_a_folder_are_parts(tmp_path):
    for name in ("train", "Validation", "test", "notes"):
        write(tmp_path / f"{name}.csv", f"text,label\n{name},x\n")
    parts = read_parts(tmp_path, kind="csv")
    assert {part: rows.text("text") for part, rows in parts.items()} == {
        "train": ["train"],
        "valid": ["Validation"],
        "test": ["test"],
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty; its first line must name the columns"),
        ("a,b\n", "holds no rows below the names of its columns"),
        ("a,a\n1,2\n", "line 1: the columns 'a', 'a' need different names"),
        ("a,b\n1,2\n1,2,3\n", "line 3 has 3 cells, and the first line names 2 columns"),
        ('a,b\n1,2\n1,"2\n', "line 3: unexpected end of data"),
    ],
)
def test_a_csv_file_that_cannot_be_used_is_named_with_its_line(tmp_path, text, words):
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(DatasetError, match=words) as error:
        read_parts(path, kind="csv")
    assert str(path) in str(error.value)


def test_another_character_between_the_cells_is_named(tmp_path):
    rows = read_parts(write(tmp_path / "a.csv", "text;label\na;b\n"), kind="csv")["train"]
    with pytest.raises(DatasetError, match="is a single column, 'text;label': .* --set 'data.delimiter=;'"):
        rows.check_columns(label_column="label")


def test_a_wrong_byte_is_named_with_its_line(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,b\n1,2\n\xff,3\n")
    with pytest.raises(DatasetError, match="line 3 is not UTF-8: byte 0xff"):
        read_parts(tmp_path / "a.csv", kind="csv")


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"a": 1}\n{"a": \n', "line 2 is not JSON"), ('{"a": 1}\n[1]\n', "line 2 is no JSON object")],
)
def test_json_that_cannot_be_used_is_named_with_its_line(tmp_path, text, words):
    with pytest.raises(DatasetError, match=words):
        read_parts(write(tmp_path / "a.jsonl", text), kind="jsonl")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"text": "", "label": 1}', "line 1: 'text' is empty; fill it in, or remove the row"),
        ('{"label": 1}', "line 1: 'text' is nothing"),
        ('{"text": ["a"], "label": 1}', "line 1: 'text' is list, expected a text or a number"),
        ('{"text": NaN, "label": 1}', "line 1: 'text' is float"),
    ],
)
def test_an_empty_or_missing_text_is_named_with_its_line(tmp_path, text, words):
    rows = read_parts(write(tmp_path / "a.jsonl", text), kind="jsonl")["train"]
    with pytest.raises(DatasetError, match=words):
        rows.text("text")


def test_folders_without_a_training_part_or_with_two_are_named(tmp_path):
    write(tmp_path / "test.csv", "a,b\n1,2\n")
    with pytest.raises(DatasetError, match=r"has no file train.csv \(found: 'test.csv'\)"):
        read_parts(tmp_path, kind="csv")
    for name in ("train", "val", "dev"):
        write(tmp_path / f"{name}.csv", "a,b\n1,2\n")
    with pytest.raises(DatasetError, match="dev and val are both the valid part"):
        read_parts(tmp_path, kind="csv")


def test_parts_with_other_columns_are_named(tmp_path):
    write(tmp_path / "train.csv", "a,b\n1,2\n")
    write(tmp_path / "test.csv", "a,c\n1,2\n")
    with pytest.raises(DatasetError, match="differ in the columns 'b', 'c'"):
        read_parts(tmp_path, kind="csv")
