import pytest

from probattn.inference.beside import beside


def test_a_file_appears_whole_under_its_name(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with beside(path) as unfinished:
        unfinished.write_text("new")
        assert path.read_text() == "old"
        assert unfinished.parent == tmp_path
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail():
        with beside(path) as unfinished:
            unfinished.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_at_once_do_not_meet(tmp_path):
    path = tmp_path / "file.txt"
    with beside(path) as one, beside(path) as other:
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]
