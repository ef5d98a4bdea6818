"""Cache: a value is computed once, and again after damage or another stamp; a write that fails is no error."""

import pickle

import pytest
import torch
from damage import AMOUNTS, accepted

from probattn.experiments.data.cache import read_or_compute

VALUE = {"numbers": torch.arange(3), "texts": ["a", "ä"], "pairs": [(1, 2.5)]}


@pytest.fixture
def read(tmp_path):
    """Reads through the cache; its list ``computed`` has an entry for each computation."""

    def read(stamp=1):
        def compute():
            read.computed.append(stamp)
            return VALUE

        return read_or_compute(tmp_path / "cache" / "value.pt", stamp=stamp, compute=compute)

    read.computed = []
    read.path = tmp_path / "cache" / "value.pt"
    return read


def same(value):
    return torch.equal(value["numbers"], VALUE["numbers"]) and value["texts"] == VALUE["texts"]


def test_a_value_is_computed_once_for_each_stamp(read):
    assert same(read())
    assert same(read())
    assert read.computed == [1]
    read(stamp=[["a", 2], "b"])
    read(stamp=[["a", 2], "b"])
    assert len(read.computed) == 2
    assert [path.name for path in read.path.parent.iterdir()] == ["value.pt"]


@AMOUNTS
def test_a_flipped_bit_is_never_read(read, amount):
    def cached(path):
        before = len(read.computed)
        value = read()
        if len(read.computed) > before:
            raise LookupError(f"{path} is damaged")
        return value

    read()
    assert all(map(same, accepted(read.path, cached, error=LookupError, amount=amount)))


@pytest.mark.parametrize("content", [b"", b"garbage", pickle.dumps({"stamp": 1, "value": VALUE})[:-9]])
def test_a_damaged_file_is_computed_again_and_replaced(read, content):
    read()
    read.path.write_bytes(content)
    assert same(read())
    assert same(read())
    assert read.computed == [1, 1]


def test_errors_of_the_computation_are_not_hidden(tmp_path):
    with pytest.raises(ZeroDivisionError):
        read_or_compute(tmp_path / "value.pt", stamp=0, compute=lambda: 1 / 0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_created_is_no_error(read):
    read.path.parent.write_text("a file in place of the folder")
    assert same(read())
    assert read.path.parent.is_file()


def test_the_folder_above_the_caches_is_not_created(tmp_path):
    assert read_or_compute(tmp_path / "no" / "cache" / "value.pt", stamp=0, compute=lambda: 5) == 5
    assert list(tmp_path.iterdir()) == []
