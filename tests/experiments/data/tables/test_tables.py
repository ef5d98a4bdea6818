"""Tables: encoding fitted to the training part, parts, labels of both kinds, and cells that cannot be used."""

import csv
import json

import numpy as np
import pytest
import torch
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import Shares
from probattn.experiments.data.tables.encoding import CategoryColumn, NumberColumn, TableEncoding
from probattn.experiments.data.tables.table_dataset import read

OPTIONS = {
    "name": "table-csv",
    "label_column": "y",
    "task": "classes",
    "ignore_columns": (),
    "categorical_columns": (),
    "delimiter": None,
    "shares": Shares(0.1, 0.2),
    "seed": 0,
    "limit": None,
}


def write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def load(path, **options):
    return read(path, **(OPTIONS | options))


@pytest.fixture
def rows():
    generator = np.random.default_rng(0)
    numbers = generator.normal(3, 2, size=(40, 2))
    colours = generator.choice(["red", "green", "blue"], size=40)
    pairs = zip(numbers.tolist(), colours, strict=True)
    return [(repr(a), repr(b), str(colour), "yn"[n % 2]) for n, ((a, b), colour) in enumerate(pairs)]


def test_numbers_are_standardised_and_categories_coded_as_scikit_learn_does(rows):
    cells = [dict(zip(("a", "b", "c"), row, strict=False)) for row in rows]
    places = [f"line {n}" for n in range(40)]
    encoding = TableEncoding.fit(cells[:30], places[:30], names=("a", "b", "c"), categories=())
    numbers, colours = np.array([row[:2] for row in rows], dtype=float), np.array([row[2:3] for row in rows])
    expected = np.hstack(
        [
            StandardScaler().fit(numbers[:30]).transform(numbers),
            OrdinalEncoder().fit(colours[:30]).transform(colours) + 1,
        ]
    )
    found = encoding.features(cells, places)
    assert found.dtype == torch.float32
    assert np.allclose(found.numpy(), expected, atol=1e-5)
    assert encoding.sizes == (None, None, 4)
    assert TableEncoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding


def test_an_unknown_category_has_code_0_and_a_constant_column_is_0():
    encoding = TableEncoding.fit(
        [{"a": "5", "c": "x"}, {"a": "5", "c": ""}], ["1", "2"], names=("a", "c"), categories=()
    )
    assert encoding.columns == (NumberColumn("a", 5.0, 1.0), CategoryColumn("c", ("", "x")))
    found = encoding.features([{"a": "5", "c": "new"}, {"a": "6", "c": ""}], ["1", "2"])
    assert found.tolist() == [[0, 0], [1, 1]]


def test_parts_of_classes(tmp_path, rows):
    found = load(write(tmp_path / "a.csv", [("a", "b", "c", "y"), *rows]))
    assert found.classes == ("n", "y")
    assert [len(part) for part in (found.train, found.valid, found.test)] == [28, 4, 8]
    assert [each.name for each in found.encoding.columns] == ["a", "b", "c"]
    assert found.train.features[:, :2].mean(0).abs().max() < 1e-5


def test_labels_of_a_regression_keep_their_units(tmp_path, rows):
    path = write(tmp_path / "a.csv", [("a", "y", "c", "d"), *rows])
    found = load(path, task="regression", categorical_columns=("d",), ignore_columns=("c",))
    assert found.classes == ()
    labels = torch.cat([part.labels for part in (found.train, found.valid, found.test)])
    assert labels.shape == (40, 1)
    assert sorted(labels[:, 0].tolist()) == pytest.approx(sorted(float(row[1]) for row in rows))
    assert found.label_mean == pytest.approx(found.train.labels.mean().item())
    assert found.label_std == pytest.approx(found.train.labels.std(correction=0).item())
    assert [type(each) for each in found.encoding.columns] == [NumberColumn, CategoryColumn]
    with pytest.raises(DatasetError, match="predict them as numbers with --set data.task=regression"):
        load(path)


@pytest.mark.parametrize(("scale", "shift"), [(1e16, 0.0), (1e-16, 0.0), (1.0, 1e6)])
def test_labels_that_single_precision_cannot_hold_are_refused(tmp_path, scale, shift):
    rows = [(at, repr(shift + scale * (at % 7 - 3))) for at in range(40)]
    with pytest.raises(DatasetError, match="subtract a constant, or change their unit"):
        load(write(tmp_path / "a.csv", [("a", "y"), *rows]), task="regression")


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        ({}, {5: ("oops", "1", "red", "y")}, r"line 7: 'a' is 'oops', in a column of numbers"),
        ({}, {5: ("", "1", "red", "y")}, r"line 7: 'a' is empty, in a column of numbers"),
        ({}, {5: ("nan", "1", "red", "y")}, r"line 7: 'a' is 'nan', in a column of numbers"),
        ({}, {5: ("1", "1", "red", " ")}, r"line 7: 'y' is empty"),
        ({}, {5: ("1e30", "1", "red", "y")}, r"line 7: 'a' is '1e30', .* \(at most 1e\+18\)"),
        ({"task": "regression"}, {}, "line 2: 'y' is 'y', expected a number"),
        ({"label_column": "z"}, {}, r"no column 'z'.*data.label_column=NAME"),
        ({"ignore_columns": ("z",)}, {}, r"no column 'z'.*data.ignore_columns=NAME"),
        ({"ignore_columns": ("a", "b", "c")}, {}, "a table needs features"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_line(tmp_path, rows, options, change, words):
    rows = [change.get(at, row) for at, row in enumerate(rows)]
    path = write(tmp_path / "a.csv", [("a", "b", "c", "y"), *rows])
    with pytest.raises(DatasetError, match=words):
        load(path, **options)
