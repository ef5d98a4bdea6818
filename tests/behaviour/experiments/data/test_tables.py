"""Tables: numbers as people write them, kinds of columns, the encoding, parts, and cells that
cannot be used."""

import json
from dataclasses import asdict
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from own_files import write_table
from sklearn.preprocessing import OrdinalEncoder, StandardScaler

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.tables.column_kinds import find_columns
from probattn.experiments.data.tables.encoding import Column, TableEncoding
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
        # No group of three digits begins with 0.
        (["1,234", "0,616"], [1.234, 0.616]),
        (["1.234", "0.616"], [1.234, 0.616]),
        (["€ 0,616", "€ 1,250"], [0.616, 1.25]),
        (["1,234.5", "2,345"], [1234.5, 2345]),
    ],
)
def test_numbers_of_one_notation(cells, expected):
    ((notation, column),) = readings(cells).items()
    assert column.tolist() == expected
    assert notation.read(cells).tolist() == expected


@pytest.mark.parametrize(
    "cells",
    [
        ["1,5", "2.5"],
        ["12 kg", "5 g"],
        ["12 kg", "5"],
        ["2020-01-05"],
        ["1.2.3"],
        ["1e300"],
        ["12,34,5"],
        ["inf"],
    ],
)
def test_what_has_no_single_notation(cells):
    assert readings(cells) == {}


def kinds(columns, **options):
    """Return the notation of columns of numbers, and the kind of others."""
    chosen, _ = find_columns(pd.DataFrame(columns, dtype=object), **{"chosen": {}} | options)
    return {
        name: column.notation if column.kind == "number" else column.kind
        for name, column in chosen.items()
    }


def test_a_comma_may_separate_thousands_and_other_columns_decide():
    thousands = ["1,234", "999", "12,345"]
    assert kinds({"a": thousands}) == {"a": Notation(".")}
    assert kinds({"a": thousands, "b": ["1,5", "2", "3"]})["a"] == Notation(",")
    assert kinds({"a": ["1.234", "999", "12.345"]}) == {"a": "unclear"}
    assert kinds({"a": ["1.234", "999", "12.345"]}, decimal=".") == {"a": Notation(".")}
    assert kinds({"a": ["1.234", "2.345", "9.876"]}) == {
        "a": Notation(".")
    }  # the unit alone differs


@pytest.mark.parametrize(
    ("others", "mark"),
    [
        (["0,5", "7"], ","),
        (["1.234,5", "7"], ","),
        (["3.14", "7"], "."),
        (["1,234.5", "7"], "."),
        (["1,234,567", "7"], "."),
        (["€ 0,25", "€ 7"], ","),
        (["7", "n.a."], None),
        (["7", "."], None),
        (["Fr. 7", "Fr. 8"], None),
        (["7 approx.", "8 approx."], None),
        (["31.12.2020", "1.1.2021"], None),
        (["7", "8"], None),
    ],
)
@pytest.mark.parametrize(
    "cells",
    [["1,234", "2,345"], ["1.234", "2.345"], ["1,234", "999"], ["1,234", "1.234"]],
)
def test_the_decimal_mark_of_a_file_is_that_of_its_clear_columns(others, mark, cells):
    frame = {"y": cells, "other": others}
    label = {"label_column": "y", "chosen": {"y": "number"}}
    found = kinds(frame, **label)["y"]
    assert found == ("unclear" if mark is None else Notation(mark))
    assert kinds(frame, decimal=",", **label)["y"] == Notation(",")
    if mark is not None:
        assert kinds(frame)["y"] == Notation(mark)
        assert kinds(frame | {"third": ["5", "6"]})["y"] == Notation(mark)
        contrary = {".": ["0,1", "0,25"], ",": ["0.1", "0.25"]}[mark]
        assert kinds(frame | {"third": contrary})["y"] == "unclear"  # both marks: it is asked
        assert kinds(frame | {"third": contrary}, decimal=mark)["y"] == Notation(mark)
        ignored = kinds(frame | {"third": contrary}, chosen={"third": "ignored"})
        assert ignored["y"] == Notation(mark)


@pytest.mark.parametrize(
    ("form", "number"),
    [("parquet", np.float64), ("parquet", np.float32), ("parquet", Decimal)]
    + [("jsonl", np.float64), ("xlsx", np.float64)],
)
def test_numbers_of_typed_files_have_no_decimal_mark_and_decide_nothing(tmp_path, form, number):
    pytest.importorskip({"parquet": "pyarrow", "xlsx": "openpyxl", "jsonl": "pandas"}[form])
    numbers = pd.Series([number(f"{n}.25") for n in range(40)])
    frame = pd.DataFrame({"x": numbers, "y": [f"{n},234" for n in range(1, 41)]})
    path = tmp_path / f"a.{form}"
    write_table(frame, path)
    options = DIVISION | {"label_column": "y", "task": "regression"}
    with pytest.raises(DatasetError, match="y: '.*234' may have"):
        read(path, **options)
    for mark, label in ((",", 20.734), (".", 20734)):
        data = read(path, decimal=mark, **options)
        labels = torch.cat([part.labels for part in (data.train, data.valid, data.test)])
        assert labels.mean().item() == pytest.approx(label, rel=1e-5)
        (x,) = data.encoding.columns
        assert (x.low * x.std + x.mean) % 1 == pytest.approx(0.25)


def test_a_missing_number_among_three_decimals_makes_nothing_unclear():
    for cells in (
        ["1.234", "2.345", "-999"],
        ["1.234", "12.345", "-1", "\u22121"],
    ):
        assert kinds({"a": cells}) == {"a": Notation(".")}


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["2020-01-31", "2021-02-01"], ["2020-01-31", "2021-02-01"]),
        (["31.01.2020", "1.2.2021"], ["2020-01-31", "2021-02-01"]),
        (["01/31/2020", "2/1/2021"], ["2020-01-31", "2021-02-01"]),
        (["31 Jan 2020", "1 Feb 2021"], ["2020-01-31", "2021-02-01"]),
        (["2020-01-31T06:00:00Z", "2021-02-01T12:00:00Z"], ["2020-01-31T06", "2021-02-01T12"]),
        (["31.01.2020 06:00", "01.02.2021 12:00"], ["2020-01-31T06", "2021-02-01T12"]),
        (["6:00", "12:30"], ["1900-01-01T06:00", "1900-01-01T12:30"]),
        (
            ["1/31/2020 6:15:30 AM", "2/1/2021 12:00:01 PM"],
            ["2020-01-31T06:15:30", "2021-02-01T12:00:01"],
        ),
    ],
)
def test_dates_and_times_become_days_and_the_day_of_the_week(cells, values):
    columns, _ = find_columns(pd.DataFrame({"a": [*cells, ""]}, dtype=object), chosen={})
    column = columns["a"].fit(pd.Series([*cells, ""]))
    assert column.kind == "date"
    days, weekday, missing = column.features(pd.Series([*cells, "NA"]))
    moments = np.array(values, "datetime64[s]")
    expected = moments.astype(int) / 86_400
    assert days[:2] * column.std + column.mean == pytest.approx(expected, abs=1e-6)
    assert weekday.tolist() == [pd.Timestamp(moment).weekday() + 1 for moment in moments] + [0]
    assert missing.tolist() == [0, 0, 1]
    assert column.sizes == [None, 8, 2]
    with pytest.raises(DatasetError, match="3: 'a' is 'soon'"):
        column.features(pd.Series([*cells, "soon"], index=[1, 2, 3]))
    restored = TableEncoding.from_json(json.loads(json.dumps([asdict(column)])))
    assert restored.columns == (column,)


def test_dates_with_the_day_or_the_month_first_are_asked_for():
    assert kinds({"a": ["01/02/2020", "03/04/2021"]}) == {"a": "unclear"}
    assert kinds({"a": ["01/02/2020", "13/04/2021"]}) == {"a": "date"}
    assert kinds({"a": ["01/01/2020", "02/02/2021"]}) == {"a": "date"}  # both are the same


@pytest.mark.parametrize("mark", ["/", "-"])
@pytest.mark.parametrize(("day_first", "months"), [("true", (2, 4)), ("false", (1, 3))])
def test_the_user_says_whether_the_day_or_the_month_comes_first(load, mark, day_first, months):
    cells = [f"01{mark}02{mark}2020", f"03{mark}04{mark}2021"]
    frame = pd.DataFrame({"a": cells * 10, "b": range(0, 40, 2), "y": ["u", "v"] * 10})
    with pytest.raises(DatasetError, match="data.day_first"):
        load(frame)
    column = load(frame, day_first=day_first == "true").encoding.columns[0]
    dates = (
        pd.Timestamp(2020, months[0], 3 - months[0]),
        pd.Timestamp(2021, months[1], 7 - months[1]),
    )
    assert column.read(cells).tolist() == [date.timestamp() / 86_400 for date in dates]


@pytest.mark.parametrize(
    "cell",
    ["{0}/80", "user{0}@example.org", "text number {0}", "{0}:{0}:{0}:{0}"],
)
def test_columns_of_mostly_different_values_are_left_out_and_named(cell):
    cells = [cell.format(100 + number) for number in range(60)]
    columns, table = find_columns(
        pd.DataFrame({"a": cells, "b": [*"xyz"] * 20}, dtype=object), chosen={}
    )
    assert [columns[name].kind in ("number", "date", "category") for name in "ab"] == [False, True]
    assert "mostly" in table.to_string()
    assert kinds({"a": cells}, chosen={"a": "category"}) == {"a": "category"}


def test_whole_numbers_in_order_number_the_rows_and_a_named_permutation_does_not():
    order = np.random.default_rng(0).permutation(np.arange(1, 31)).astype(str).tolist()
    rows = list(map(str, range(1, 31)))
    assert kinds({"dose": order, "n": rows, "Unnamed: 0": order}) == {
        "dose": Notation("."),
        "n": "numbers the rows",
        "Unnamed: 0": "numbers the rows",
    }


@pytest.mark.parametrize(
    ("cells", "place"),
    [
        (["1.5", "2", "oops", "4"], "line 4"),
        (["1,5", "2,5", "3,5", "4.5"], "line 5"),
        (["5 kg", "6 kg", "7 g", "1 kg"], "line 4"),
    ],
)
def test_the_first_bad_cell_of_an_unclear_column_is_named_with_its_line(load, cells, place):
    frame = pd.DataFrame({"a": cells * 5, "y": ["u", "v"] * 10})
    with pytest.raises(DatasetError, match=f"a: .*{place}: "):
        load(frame)


DIVISION = {"shares": {"valid": 0.1, "test": 0.2}, "seed": 0, "limit": None}


def fit(rows, *columns):
    return TableEncoding(tuple(column.fit(rows[column.name]) for column in columns))


@pytest.fixture
def rows():
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(3, 2, (40, 2)), columns=["a", "b"])
    return frame.assign(c=generator.choice(["red", "green", "blue"], 40), y=[*"yn"] * 20).astype(
        str
    )


@pytest.fixture
def load(tmp_path):
    """Function that writes a table to a file and reads it."""

    def load(frame, *, sep=",", **options):
        frame.to_csv(tmp_path / "a.csv", sep=sep, index=sep == ";")
        return read(
            tmp_path / "a.csv", **{"label_column": "y", "task": "classes", **DIVISION, **options}
        )

    return load


def test_numbers_are_standardised_and_categories_coded_as_scikit_learn_does(rows):
    encoding = fit(rows[:30], Column("a"), Column("b"), Column("c", "category"))
    numbers, colours = rows[["a", "b"]].to_numpy(float), rows[["c"]].to_numpy()
    scaled = StandardScaler().fit(numbers[:30]).transform(numbers)
    expected = np.hstack([scaled, OrdinalEncoder().fit(colours[:30]).transform(colours) + 1])
    assert np.allclose(encoding.features(rows).numpy(), expected.astype(float), atol=1e-5)
    assert encoding.sizes == (None, None, 4)


def test_unknown_categories_constant_columns_and_missing_numbers():
    training = [
        {"a": "5", "c": "x", "m": "1"},
        {"a": "5", "c": "Cafe\u0301", "m": ""},
        {"a": "5", "c": "", "m": "3"},
    ]
    encoding = fit(pd.DataFrame(training), Column("a"), Column("c", "category"), Column("m"))
    new = [{"a": "5", "c": "new", "m": "2"}, {"a": "6", "c": "Caf\u00e9\u200b", "m": "NA"}]
    assert encoding.features(pd.DataFrame(new)).tolist() == [[0, 0, 0, 0], [1, 2, 0, 1]]
    assert encoding.sizes == (None, 4, None, 2)
    with pytest.raises(DatasetError, match="2: 'a' is '', in a column of numbers"):
        encoding.features(pd.DataFrame([new[0], new[1] | {"a": ""}], index=[1, 2]))


def test_the_features_do_not_depend_on_how_numbers_are_written(load, rows):
    rows[["a", "b"]] = rows[["a", "b"]].astype(float).mul(1000).round(1)
    german = rows[["a", "b"]].map(
        lambda number: f"{number:,.1f} €".translate(str.maketrans(",.-", ".,\u2212"))
    )
    plain = load(rows)
    other = load(rows.assign(**german, y="\u200b" + rows.y + "\u00a0"), sep=";", delimiter=";")
    for part in ("train", "valid", "test"):
        assert torch.equal(getattr(plain, part).features, getattr(other, part).features)
        assert torch.equal(getattr(plain, part).labels, getattr(other, part).labels)
    assert other.classes == ("n", "y")


@pytest.mark.parametrize(
    "cell",
    [
        *("NA", "nan", "-", "?", "None", "null", "N/A", "", " "),
        *(".", "#N/A", "n.a.", "-NaN", "#NV"),
        *("\u2013", " \u2014 ", "\u2212", "#DIV/0!", "#Value!", "(null)", "<NULL>"),
    ],
)
@pytest.mark.parametrize("task", ["classes", "regression"])
def test_a_missing_label_is_an_error_with_its_line(load, rows, cell, task):
    rows.loc[[5, 9], "y"] = cell
    if task == "regression":
        rows["y"] = [cell if number in (5, 9) else str(number) for number in range(len(rows))]
    with pytest.raises(DatasetError, match="line 7: .*2 labels"):
        load(rows, task=task)


def test_what_training_has_not_is_said_by_column(rows):
    columns = Column("a"), Column("c", "category"), Column("d", "date", form="ISO8601")
    encoding = fit(rows[:30].assign(d="2020-01-05"), *columns)
    low, high = rows[:30]["a"].astype(float).min(), rows[:30]["a"].astype(float).max()
    new = pd.DataFrame(
        [
            {"a": str(low), "c": "red", "d": "2020-01-05"},
            {"a": str(high + 0.05 * (high - low)), "c": "Red", "d": "2020-01-05"},
            {"a": str(high + 0.2 * (high - low)), "c": "", "d": "2020-01-05"},
            {"a": "1e9", "c": "blue", "d": "2031-01-05"},
            {"a": str(low - 2 * (high - low)), "c": "TRUE", "d": "2020-01-05"},
        ]
    )
    unlike = encoding.unlike_training(encoding.features(new))
    assert unlike.to_numpy().T.tolist() == [
        [False, False, True, True, True],
        [False, True, True, False, True],
        [False, False, False, True, False],
    ]
    restored = TableEncoding.from_json(json.loads(json.dumps(asdict(encoding)))["columns"])
    assert restored.unlike_training(encoding.features(new)).equals(unlike)


def test_a_share_of_categories_is_unknown_in_training_alone(load, rows):
    data = load(pd.concat([rows] * 9, ignore_index=True))
    position = data.encoding.are_categories.index(True)
    assert (data.train.features[:, position] > 0).all()
    generator = torch.Generator().manual_seed(1)
    drawn = [x for _ in range(40) for x, _ in data.training(batch_size=64, generator=generator)]
    shares = (torch.cat(drawn) == 0).double().mean(0)
    assert 0.005 < shares[position] < 0.06
    known = torch.cat(drawn)[:, :position]
    assert set(known.unique().tolist()) <= set(data.train.features[:, :position].unique().tolist())
    assert torch.equal(
        torch.cat([x for x, _ in data.batches(data.train, batch_size=7)]), data.train.features
    )


def test_equal_rows_and_groups_stay_in_one_part(load, rows):
    rows["patient"] = [f"p{number % 11}" for number in range(len(rows))]
    twice = pd.concat([rows, rows.assign(y="n", patient="p0")], ignore_index=True)
    data = load(twice.drop(columns="patient"))
    parts = [set(part.keys) for part in (data.train, data.valid, data.test)]
    assert sum(map(len, parts)) == len(set.union(*parts))
    data = load(rows, group_column="patient")
    assert [column.name for column in data.encoding.columns] == [*"abc"]
    features = map(tuple, data.encoding.features(rows).tolist())
    group_of = dict(zip(features, rows["patient"], strict=True))
    groups = [
        {group_of[tuple(row)] for row in part.features.tolist()}
        for part in (data.train, data.valid, data.test)
    ]
    assert sum(map(len, groups)) == 11


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
