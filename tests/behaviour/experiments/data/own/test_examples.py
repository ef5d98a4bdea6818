"""Division of examples into parts, and the classes of their labels."""

from collections import Counter

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import (
    class_indices,
    class_names,
    divide,
    find_parts,
    normal_name,
)

SHARES = {"valid": 0.1, "test": 0.2}


def examples(labels):
    places = [f"line {n}" for n in range(len(labels))]
    return pd.DataFrame({"input": range(len(labels)), "label": labels}, index=places)


def split(labels, *, seed=0, limit=None, **given):
    return divide({"train": examples(labels), **given}, shares=SHARES, seed=seed, limit=limit)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(3, 40), min_size=2, max_size=5), st.integers(0, 5))
def test_every_example_is_in_one_part_and_every_class_in_each(sizes, seed):
    labels = [str(at) for at, size in enumerate(sizes) for _ in range(size)]
    parts = split(labels, seed=seed)
    assert sorted(sum((list(part.input) for part in parts.values()), [])) == list(range(len(labels)))
    for name, share in {"valid": 0.1, "test": 0.2}.items():
        expected = {str(at): max(1, int(share * size)) for at, size in enumerate(sizes)}
        assert Counter(parts[name].label) == expected
    assert all(list(part.input) == sorted(part.input) for part in parts.values())


def test_a_limit_reduces_training_and_validation_part_and_not_the_test_part():
    whole, some = split(["a", "b"] * 100), split(["a", "b"] * 100, limit=14)
    assert {name: len(part) for name, part in some.items()} == {"train": 14, "valid": 2, "test": 40}
    assert list(some["test"].input) == list(whole["test"].input)
    assert set(some["train"].input) < set(whole["train"].input)


def test_a_class_with_too_few_examples_is_named():
    parts = split(["a", "c"] * 6 + ["b"] * 2)
    with pytest.raises(DatasetError, match="line 1[23] has the label 'b', which no training example has"):
        class_indices(parts["valid"].label, class_names(parts["train"].label))
    assert len(split(["a"] * 6 + ["b"] * 2, test=examples(["a"]))["train"]) == 6


def test_classes_that_are_numbers_are_in_their_order():
    assert class_names(examples(["10", "9", "-1"]).label) == ("-1", "9", "10")
    assert class_names(examples(["10", "9", "x"]).label) == ("10", "9", "x")
    assert class_indices(examples(["9", "-1"]).label, ("-1", "9", "10")).tolist() == [1, 0]


def test_parts_are_recognised_by_every_usual_name():
    assert find_parts(["Training", "DEV", "testing", "cats"]) == {
        "train": "Training",
        "valid": "DEV",
        "test": "testing",
    }
    assert find_parts(["trains", "tests", "evaluate"]) == {}
    with pytest.raises(DatasetError, match="Train and training are both the train part"):
        find_parts(["Train", "training"])


@pytest.mark.parametrize("spelling", ["cafe\u0301 noir", "\ufeffcaf\u00e9\u00a0noir ", "caf\u00e9 \u200bnoir\u200d"])
def test_names_that_look_alike_are_one(spelling):
    assert normal_name(spelling) == "caf\u00e9 noir"
