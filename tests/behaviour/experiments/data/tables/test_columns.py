"""Numbers as people write them, kinds of columns, and what the data's owner must decide."""

import pandas as pd
import pytest

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.tables.encoding import choose_features, find_columns
from probattn.experiments.data.tables.numbers import Notation, readings


def numbers(cells, **options):
    ((notation, column),) = readings(cells, **options).items()
    return notation, column.tolist()


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "2.5", "-3e2", ".5", "+4."], [1, 2.5, -300, 0.5, 4]),
        (["1.234,5", "2", "1.234.567"], [1234.5, 2, 1234567]),
        (["1,234.5", "2", "1,234,567"], [1234.5, 2, 1234567]),
        (["1 234,5", "1\u00a0234,5", "1\u202f234,5", "12"], [1234.5, 1234.5, 1234.5, 12]),
        (["1'234.50", "7\u2019000.5"], [1234.5, 7000.5]),
        (["\u22121.5", "\u20132", "3"], [-1.5, -2, 3]),
        (["$1,000.50", "-$3", "$-4"], [1000.5, -3, -4]),
        (["12 kg", "3.5 kg", "4kg"], [12, 3.5, 4]),
        (["12 %", "50%"], [12, 50]),
    ],
)
def test_numbers_of_one_notation(cells, expected):
    notation, found = numbers(cells)
    assert found == expected
    assert notation.read(cells).tolist() == expected


@pytest.mark.parametrize(
    "cells",
    [["1,5", "2.5"], ["12 kg", "5 g"], ["12 kg", "5"], ["A12", "A13"], ["2020-01-05"], ["12:30"], ["1.2.3"], ["x"],
     ["1e300"], ["12,34,5"], ["inf"]],
)  # fmt: skip
def test_what_has_no_single_notation(cells):
    assert readings(cells) == {}


def kinds(columns, **options):
    """Return the notation of columns of numbers, and the kind of others."""
    found, _ = find_columns(pd.DataFrame(columns, dtype=object), **{"chosen": {}} | options)
    return {name: column.notation if column.kind == "number" else column.kind for name, column in found.items()}


def test_a_comma_may_separate_thousands_and_other_columns_decide():
    thousands = ["1,234", "999", "12,345"]
    assert kinds({"a": thousands}) == {"a": Notation(".")}
    assert kinds({"a": thousands}, decimal=",") == {"a": Notation(",")}
    assert kinds({"a": thousands, "b": ["1,5", "2", "3"]})["a"] == Notation(",")
    assert kinds({"a": ["1.234", "999", "12.345"], "b": ["1,5", "2", "3"]})["a"] == Notation(",")
    assert kinds({"a": ["1.234", "999", "12.345"]}) == {"a": "unclear"}
    assert kinds({"a": ["1.234", "999", "12.345"]}, decimal=".") == {"a": Notation(".")}
    assert kinds({"a": ["1.234", "2.345", "9.876"]}) == {"a": Notation(".")}  # the unit alone differs


def test_columns_that_number_the_rows_are_no_features():
    columns = {
        "Unnamed: 0": ["17", "3", "99"],
        "row": ["2", "3", "1"],
        "value": ["2", "4", "1"],
        "twice": ["1", "2", "2"],
        "half": ["1", "1.5", "2"],
        "empty": ["", "NA", ""],
    }
    found = kinds(columns)
    assert [name for name, kind in found.items() if kind == "numbers the rows"] == ["Unnamed: 0", "row"]
    assert found["empty"] == "empty"
    assert kinds(columns, chosen={"row": "number", "Unnamed: 0": "category", "half": "ignored"}) == found | {
        "row": Notation(), "Unnamed: 0": "category", "half": "ignored"
    }  # fmt: skip


def test_what_the_owner_must_decide_stops_with_a_table_of_columns():
    cells = pd.DataFrame(
        {"weight": ["12 kg", "900 g", "", "3 kg"], "id": list("1234"), "b": ["x", "y", "x", "z"], "n": list("5638")}
    )

    def features(**chosen):
        columns, table = find_columns(cells, chosen=chosen)
        return [column.name for column in choose_features(columns, table, label_column="b")], table

    with pytest.raises(DatasetError) as error:
        features()
    lines = str(error.value).splitlines()
    assert lines[1].split() == ["column", "kind", "range", "missing", "example"]
    assert [line.split()[:2] for line in lines[2:6]] == [
        ["weight", "unclear"], ["id", "numbers"], ["b", "category"], ["n", "number"]
    ]  # fmt: skip
    for setting in ("data.categorical_columns", "data.ignore_columns", "data.number_columns", "data.decimal"):
        assert setting in lines[-1]
    names, table = features(weight="category")
    assert names == ["weight", "n"]
    table = table.set_index("column")
    assert table.loc["n"].tolist() == ["number", "3 to 8", "0%", "5"]
    assert table.loc["weight", "missing"] == "25%"
    assert table.loc["id", "kind"] == "numbers the rows"
