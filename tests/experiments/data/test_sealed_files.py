"""Digests, JSON files that carry one, and the cache: what is read is what was written, or an error."""

import json
import math

import pytest
import torch

from probattn.experiments.data.cache import read_or_compute
from probattn.experiments.data.sealed_files import DamagedFileError, digest, read_json, write_json

VALUES = [
    None, True, 1, 1.0, "1", b"1", "", b"", [], {}, [1, 2], [2, 1], [[1], 2], [1, [2]], {"a": 1}, {"a": "1"}, {"b": 1},
    ["ab", "c"], ["a", "bc"], [None, None], -0.0, 0.0, torch.zeros(2), torch.zeros(2, 1), torch.zeros(2).double(),
    torch.tensor([0, 1]), torch.tensor([1, 0]), torch.zeros(0), "\ud800",
]  # fmt: skip


def test_different_values_have_different_digests():
    assert len({digest(value) for value in VALUES}) == len(VALUES)


def test_equal_values_have_equal_digests():
    matrix = torch.randn(3, 4)
    assert digest(matrix.T) == digest(matrix.T.contiguous())
    assert digest({"a": (1, 2), "b": matrix}) == digest({"b": matrix.clone(), "a": [1, 2]})


def test_json_comes_back_and_numbers_that_json_lacks_become_null(tmp_path):
    content = {"numbers": [1, 2.5, 1e-300], "text": "α\n\ud800", "nothing": None, "deep": {"a": [{}]}}
    write_json(tmp_path / "a.json", content | {"odd": (math.nan, math.inf)})
    assert read_json(tmp_path / "a.json") == content | {"odd": [None, None]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"digest": 1}', b"\xff", b"edited"])
def test_a_changed_or_foreign_file_is_refused(tmp_path, damage):
    path = tmp_path / "a.json"
    write_json(path, {"a": 2.5})
    path.write_bytes(path.read_bytes().replace(b"2.5", b"2.6") if damage == b"edited" else damage)
    with pytest.raises(DamagedFileError, match="train again"):
        read_json(path, advice="train again")


def test_a_failed_write_leaves_the_earlier_file(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", {"a": 1})
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        write_json(tmp_path / "a.json", {"a": 2})
    assert json.loads((tmp_path / "a.json").read_text())["a"] == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_the_cache_computes_once_for_each_stamp_and_again_after_damage(tmp_path):
    path, computed = tmp_path / "cache" / "value.pt", []

    def read(stamp):
        return read_or_compute(path, stamp=stamp, compute=lambda: computed.append(stamp) or ["ä", torch.arange(3)])

    for stamp in (1, 1, [["a", 2]], [["a", 2]]):
        assert read(stamp)[1].tolist() == [0, 1, 2]
    assert len(computed) == 2
    path.write_bytes(path.read_bytes()[:-9])
    read([["a", 2]])
    assert len(computed) == 3


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "cache").write_text("a file in place of the folder")
    assert read_or_compute(tmp_path / "cache" / "value.pt", stamp=1, compute=lambda: 5) == 5
    assert read_or_compute(tmp_path / "no" / "cache" / "value.pt", stamp=1, compute=lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        read_or_compute(tmp_path / "value.pt", stamp=1, compute=lambda: 1 / 0)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
