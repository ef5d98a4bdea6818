"""Inputs of predictions from files: what is read as for training."""

from probattn.experiments.data.tables.encoding import TableEncoding
from probattn.experiments.data.tables.numbers import Notation
from probattn.experiments.sharing.inputs import read_rows, read_texts


def test_cells_are_separated_by_the_character_of_training(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a;b\n1;x, y\n2;z\n")
    encoding = TableEncoding.fit([{"a": "1"}, {"a": "3"}], notations={"a": Notation()})
    assert [row["a"] for row in read_rows([path], encoding=encoding, delimiter=";").values] == ["1", "2"]
    found = read_texts([path], texts=(), column="b", delimiter=";")
    assert found.values == ["x, y", "z"]
    assert found.names == [f"{path}:2", f"{path}:3"]


def test_a_file_without_the_columns_of_the_model_and_one_that_is_missing_are_one_failure_each(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("b,c\n1,2\n3,4\n")
    encoding = TableEncoding.fit([{"a": "1"}, {"a": "3"}], notations={"a": Notation()})
    found = read_rows([path, tmp_path / "none.csv", tmp_path], encoding=encoding)
    assert "lacks the columns 'a', which the model takes; it has 'b', 'c'" in found.failures[str(path)]
    assert "No such file" in found.failures[str(tmp_path / "none.csv")]
    assert "Is a directory" in found.failures[str(tmp_path)]


def test_a_table_of_another_separator_is_one_failure(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a;b\n1;x\n")
    found = read_texts([path], texts=(), column="b")
    assert not found.values
    assert "there is no column 'b'" in found.failures[str(path)]
