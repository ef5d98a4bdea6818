"""Digests and JSON files: what is read is what was written, or an error."""

import json

import pytest
import torch

from probattn.experiments.data.dataset import digest
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.preprocessing import read_json, write_json

VALUES = [
    (), (None,), (True,), (1,), (1.0,), ("1",), ("",), ([],), ([1, 2],), ([2, 1],), (1, 2), ([[1], 2],), (["ab", "c"],),
    (["a", "bc"],), (-0.0,), (0.0,), (torch.zeros(2),), (torch.zeros(2, 1),), (torch.zeros(2).double(),),
    (torch.zeros(2), torch.zeros(2)), (torch.zeros(4),), (torch.tensor([0, 1]),), (torch.zeros(0),), ("\ud800",),
]  # fmt: skip


def test_digests_are_equal_where_values_are():
    assert len({digest(*values) for values in VALUES}) == len(VALUES)
    matrix = torch.randn(3, 4)
    assert digest(matrix.T, (1, 2)) == digest(matrix.T.contiguous(), [1, 2])


def test_json_comes_back_and_a_damaged_file_is_refused(tmp_path):
    content = {"numbers": [1, 2.5, 1e-300], "text": "α\n\ud800", "nothing": None, "deep": {"a": [{}]}}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    for damage in (b"", b"[1]", b'{"a"', b"\xff"):
        (tmp_path / "a.json").write_bytes(damage)
        with pytest.raises(DatasetError, match=r"a\.json is missing or damaged"):
            read_json(tmp_path / "a.json")


def test_a_failed_write_leaves_the_earlier_file(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", {"a": 1})
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        write_json(tmp_path / "a.json", {"a": 2})
    assert json.loads((tmp_path / "a.json").read_text())["a"] == 1
    assert len(list(tmp_path.iterdir())) == 1
