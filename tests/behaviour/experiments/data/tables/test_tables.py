"""Tables: encoding fitted to the training part, parts, labels of both kinds, and cells that cannot be used."""

import csv
import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.tables.encoding import Column, TableEncoding
from probattn.experiments.data.tables.table_dataset import read

DIVISION = {"shares": {"valid": 0.1, "test": 0.2}, "seed": 0, "limit": None}


def write(path, rows, **options):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, **options).writerows(rows)
    return path


def fit(rows, *columns):
    return TableEncoding(tuple(column.fit(rows[column.name]) for column in columns))


def load(path, **options):
    return read(path, **{"label_column": "y", "task": "classes", **DIVISION, **options})


@pytest.fixture
def rows():
    generator = np.random.default_rng(0)
    pairs = zip(generator.normal(3, 2, (40, 2)).tolist(), generator.choice(["red", "green", "blue"], 40), strict=True)
    return [(repr(a), repr(b), str(colour), "yn"[n % 2]) for n, ((a, b), colour) in enumerate(pairs)]


def test_numbers_are_standardised_and_categories_coded_as_scikit_learn_does(rows):
    cells = pd.DataFrame(rows, columns=list("abcy")).drop(columns="y")
    encoding = fit(cells[:30], Column("a"), Column("b"), Column("c", "category"))
    numbers, colours = np.array([row[:2] for row in rows], dtype=float), np.array([row[2:3] for row in rows])
    scaled = StandardScaler().fit(numbers[:30]).transform(numbers)
    expected = np.hstack([scaled, OrdinalEncoder().fit(colours[:30]).transform(colours) + 1])
    features = encoding.features(cells)
    assert features.dtype == torch.float32
    assert np.allclose(features.numpy(), expected, atol=1e-5)
    assert encoding.sizes == (None, None, 4)
    assert TableEncoding.from_json(json.loads(json.dumps(asdict(encoding)))["columns"]) == encoding


def test_unknown_categories_constant_columns_and_missing_numbers():
    training = [{"a": "5", "c": "x", "m": "1"}, {"a": "5", "c": "Cafe\u0301", "m": ""}, {"a": "5", "c": "", "m": "3"}]
    encoding = fit(pd.DataFrame(training), Column("a"), Column("c", "category"), Column("m"))
    new = [{"a": "5", "c": "new", "m": "2"}, {"a": "6", "c": "Caf\u00e9\u200b", "m": "NA"}]
    assert encoding.features(pd.DataFrame(new)).tolist() == [[0, 0, 0, 0], [1, 2, 0, 1]]
    assert encoding.sizes == (None, 4, None, 2)
    assert TableEncoding.from_json(json.loads(json.dumps(asdict(encoding)))["columns"]) == encoding
    with pytest.raises(DatasetError, match="2: 'a' is '', in a column of numbers"):
        encoding.features(pd.DataFrame([new[0], new[1] | {"a": ""}], index=[1, 2]))


def test_the_features_do_not_depend_on_how_numbers_are_written(tmp_path, rows):
    rows = [(*(f"{1000 * float(cell):.1f}" for cell in row[:2]), *row[2:]) for row in rows]
    header = ("a", "b", "c", "y")
    plain = load(write(tmp_path / "plain.csv", [header, *rows]))

    def german(cell):
        return f"{float(cell):,.1f} €".translate(str.maketrans(",.-", ".,\u2212"))

    written = [
        ("", *header),
        *((n, german(a), german(b), c, f"\u200b{y}\u00a0") for n, (a, b, c, y) in enumerate(rows)),
    ]
    other = load(write(tmp_path / "german.csv", written, delimiter=";"), delimiter=";")
    for part in ("train", "valid", "test"):
        assert torch.equal(getattr(plain, part).features, getattr(other, part).features)
        assert torch.equal(getattr(plain, part).labels, getattr(other, part).labels)
    assert other.classes == ("n", "y")


def test_an_index_is_left_out_unless_it_is_asked_for(tmp_path, rows):
    path = write(tmp_path / "a.csv", [("", "a", "b", "c", "y"), *((n, *row) for n, row in enumerate(rows))])
    assert [column.name for column in load(path).encoding.columns] == ["a", "b", "c"]
    asked = load(path, number_columns=("Unnamed: 0",))
    assert [column.name for column in asked.encoding.columns] == ["Unnamed: 0", "a", "b", "c"]


def test_labels_of_a_regression_keep_their_units(tmp_path, rows):
    path = write(tmp_path / "a.csv", [("a", "y", "c", "d"), *rows])
    data = load(path, task="regression", categorical_columns=("d",), ignore_columns=("c",))
    assert data.classes == ()
    labels = torch.cat([part.labels for part in (data.train, data.valid, data.test)])
    assert labels.shape == (40, 1)
    assert sorted(labels[:, 0].tolist()) == pytest.approx(sorted(float(row[1]) for row in rows))
    assert data.label_mean == pytest.approx(data.train.labels.mean().item())
    assert data.label_std == pytest.approx(data.train.labels.std(correction=0).item())
    assert data.encoding.sizes == (None, 3)
    with pytest.raises(DatasetError, match=r"data\.task=regression"):
        load(path)


def test_labels_that_single_precision_cannot_hold_are_refused(tmp_path):
    rows = [(n * n, 1e6 + n % 7) for n in range(40)]
    with pytest.raises(DatasetError, match="subtract a constant"):
        load(write(tmp_path / "a.csv", [("a", "y"), *rows]), task="regression")


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        ({}, {5: ("oops", "1", "red", "y")}, "'a' are not all numbers"),
        ({"number_columns": ("a",)}, {5: ("oops", "1", "red", "y")}, "line 7: 'a' is 'oops'"),
        ({}, {5: ("1", "1", "red", " ")}, r"line 7: 'y' is ' '"),
        ({"task": "regression"}, {}, r"line \d+: 'y' is '[yn]', in a column of numbers"),
        ({"label_column": "z"}, {}, r"no column 'z'.*data.label_column="),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, rows, options, change, words):
    rows = [change.get(n, row) for n, row in enumerate(rows)]
    with pytest.raises(DatasetError, match=words):
        load(write(tmp_path / "a.csv", [("a", "b", "c", "y"), *rows]), **options)
