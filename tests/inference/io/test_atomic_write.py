"""Atomic writes: a file appears whole or not at all."""

from pathlib import Path

import pytest

from probattn.inference.io.files import write_bytes


@pytest.mark.parametrize("tag", [None, "part"])
def test_a_file_appears_whole_under_its_name(tmp_path, monkeypatch, tag):
    path, replace = tmp_path / "file.txt", Path.replace
    path.write_text("old")
    (tmp_path / ".file.txt.part").write_text("half of a file, of a process that was killed")

    def rename(draft, target):
        assert (draft.read_text(), path.read_text(), draft.parent) == ("new", "old", tmp_path)
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", rename)
    write_bytes(path, b"new", tag=tag)
    assert path.read_text() == "new"
    assert len(list(tmp_path.iterdir())) == (2 if tag is None else 1)


def test_an_error_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail(draft, target):
        raise KeyError

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(KeyError):
        write_bytes(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_at_once_do_not_meet(tmp_path, monkeypatch):
    path, replace = tmp_path / "file.txt", Path.replace

    def rename(draft, target):
        monkeypatch.setattr(Path, "replace", replace)
        write_bytes(path, b"other")
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", rename)
    write_bytes(path, b"one")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]
