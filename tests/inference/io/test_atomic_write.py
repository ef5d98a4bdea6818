"""Atomic writes: a file appears whole or not at all."""

import pytest

from probattn.inference.io.files import atomic_write


def test_a_file_appears_whole_under_its_name(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with atomic_write(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
        assert draft.parent == tmp_path
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail():
        with atomic_write(path) as draft:
            draft.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_fixed_name_leaves_one_file_however_often_a_process_is_killed(tmp_path):
    path = tmp_path / "file.txt"
    (tmp_path / ".file.txt.part").write_text("half of a file, of a process that was killed")
    with atomic_write(path, tag="part") as draft:
        draft.write_text("new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", ["absent/file.txt", "file/file.txt", "/proc/file.txt"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, place):
    (tmp_path / "file").touch()
    path = tmp_path / place
    with pytest.raises(OSError, match=f"'{path}'$"), atomic_write(path) as draft:
        draft.write_text("new")


def test_two_at_once_do_not_meet(tmp_path):
    path = tmp_path / "file.txt"
    with atomic_write(path) as one, atomic_write(path) as other:
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]
