"""Tables: numbers as people write them, kinds of columns, the encoding, parts, and cells that cannot be used."""

import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.tables.encoding import Column, TableEncoding, find_columns
from probattn.experiments.data.tables.numbers import Notation, readings
from probattn.experiments.data.tables.table_dataset import read


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "2.5", "-3e2", ".5", "+4."], [1, 2.5, -300, 0.5, 4]),
        (["1.234,5", "2", "1.234.567"], [1234.5, 2, 1234567]),
        (["1 234,5", "1\u00a0234,5", "1\u202f234,5", "12"], [1234.5, 1234.5, 1234.5, 12]),
        (["\u22121.5", "\u20132", "3"], [-1.5, -2, 3]),
        (["$1,000.50", "-$3", "$-4"], [1000.5, -3, -4]),
        (["12 kg", "3.5 kg", "4kg"], [12, 3.5, 4]),
    ],
)
def test_numbers_of_one_notation(cells, expected):
    ((notation, column),) = readings(cells).items()
    assert column.tolist() == expected
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
    chosen, _ = find_columns(pd.DataFrame(columns, dtype=object), **{"chosen": {}} | options)
    return {name: column.notation if column.kind == "number" else column.kind for name, column in chosen.items()}


def test_a_comma_may_separate_thousands_and_other_columns_decide():
    thousands = ["1,234", "999", "12,345"]
    assert kinds({"a": thousands}) == {"a": Notation(".")}
    assert kinds({"a": thousands, "b": ["1,5", "2", "3"]})["a"] == Notation(",")
    assert kinds({"a": ["1.234", "999", "12.345"]}) == {"a": "unclear"}
    assert kinds({"a": ["1.234", "999", "12.345"]}, decimal=".") == {"a": Notation(".")}
    assert kinds({"a": ["1.234", "2.345", "9.876"]}) == {"a": Notation(".")}  # the unit alone differs


DIVISION = {"shares": {"valid": 0.1, "test": 0.2}, "seed": 0, "limit": None}


def fit(rows, *columns):
    return TableEncoding(tuple(column.fit(rows[column.name]) for column in columns))


@pytest.fixture
def rows():
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(3, 2, (40, 2)), columns=["a", "b"])
    return frame.assign(c=generator.choice(["red", "green", "blue"], 40), y=[*"yn"] * 20).astype(str)


@pytest.fixture
def load(tmp_path):
    """Function that writes a table to a file and reads it."""

    def load(frame, *, sep=",", **options):
        frame.to_csv(tmp_path / "a.csv", sep=sep, index=sep == ";")
        return read(tmp_path / "a.csv", **{"label_column": "y", "task": "classes", **DIVISION, **options})

    return load


def test_numbers_are_standardised_and_categories_coded_as_scikit_learn_does(rows):
    encoding = fit(rows[:30], Column("a"), Column("b"), Column("c", "category"))
    numbers, colours = rows[["a", "b"]].to_numpy(float), rows[["c"]].to_numpy()
    scaled = StandardScaler().fit(numbers[:30]).transform(numbers)
    expected = np.hstack([scaled, OrdinalEncoder().fit(colours[:30]).transform(colours) + 1])
    assert np.allclose(encoding.features(rows).numpy(), expected.astype(float), atol=1e-5)
    assert encoding.sizes == (None, None, 4)


def test_unknown_categories_constant_columns_and_missing_numbers():
    training = [{"a": "5", "c": "x", "m": "1"}, {"a": "5", "c": "Cafe\u0301", "m": ""}, {"a": "5", "c": "", "m": "3"}]
    encoding = fit(pd.DataFrame(training), Column("a"), Column("c", "category"), Column("m"))
    new = [{"a": "5", "c": "new", "m": "2"}, {"a": "6", "c": "Caf\u00e9\u200b", "m": "NA"}]
    assert encoding.features(pd.DataFrame(new)).tolist() == [[0, 0, 0, 0], [1, 2, 0, 1]]
    assert encoding.sizes == (None, 4, None, 2)
    assert TableEncoding.from_json(json.loads(json.dumps(asdict(encoding)))["columns"]) == encoding
    with pytest.raises(DatasetError, match="2: 'a' is '', in a column of numbers"):
        encoding.features(pd.DataFrame([new[0], new[1] | {"a": ""}], index=[1, 2]))


def test_the_features_do_not_depend_on_how_numbers_are_written(load, rows):
    rows[["a", "b"]] = rows[["a", "b"]].astype(float).mul(1000).round(1)
    german = rows[["a", "b"]].map(lambda number: f"{number:,.1f} €".translate(str.maketrans(",.-", ".,\u2212")))
    plain, other = load(rows), load(rows.assign(**german, y="\u200b" + rows.y + "\u00a0"), sep=";", delimiter=";")
    for part in ("train", "valid", "test"):
        assert torch.equal(getattr(plain, part).features, getattr(other, part).features)
        assert torch.equal(getattr(plain, part).labels, getattr(other, part).labels)
    assert other.classes == ("n", "y")


def test_labels_of_a_regression_keep_their_units(load, rows):
    rows = rows.set_axis([*"aycd"], axis=1)
    data = load(rows, task="regression", categorical_columns=("d",), ignore_columns=("c",))
    assert data.classes == ()
    labels = torch.cat([part.labels for part in (data.train, data.valid, data.test)])
    assert labels.shape == (40, 1)
    assert sorted(labels[:, 0].tolist()) == pytest.approx(sorted(rows.y.astype(float)))
    assert data.label_mean == pytest.approx(data.train.labels.mean().item())
    assert data.label_std == pytest.approx(data.train.labels.std(correction=0).item())
    with pytest.raises(DatasetError, match=r"data\.task=regression"):
        load(rows)


@pytest.mark.parametrize(
    ("column", "cell", "options", "words"),
    [
        ("a", "oops", {"number_columns": ("a",)}, "line 7"),
        ("y", " ", {}, "line 7"),
        ("a", "1", {"task": "regression"}, "'y'"),
    ],
)
def test_what_cannot_be_used_is_named(load, rows, column, cell, options, words):
    rows.loc[5, column] = cell
    with pytest.raises(DatasetError, match=words):
        load(rows, **options)
