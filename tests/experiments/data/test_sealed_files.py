"""Files with a digest of their content: what is read is what was written, or an error that says what to do."""

import json
import math
import os

import pytest

from probattn.experiments.data.sealed_files import (
    UNSEALED,
    DamagedFileError,
    read_json,
    write_json,
    write_sealed,
)

CONTENT = {"numbers": [1, 2.5, 1e-300], "text": "α\n", "nothing": None, "deep": {"a": [{}]}}


def test_json_comes_back_as_it_was_and_is_readable_to_all(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, CONTENT)
    assert read_json(path) == CONTENT
    everything = json.loads(path.read_text(encoding="utf-8"))
    assert everything.pop("digest").startswith("probattn-sha256:")
    assert everything == CONTENT
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_strict(tmp_path):
    write_json(tmp_path / "a.json", {"a": [math.nan, math.inf, 1.0]})
    assert read_json(tmp_path / "a.json") == {"a": [None, None, 1.0]}


def test_an_entry_of_the_name_of_the_digest_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a\.json: the entry 'digest' is that of the file; choose another name"):
        write_json(tmp_path / "a.json", {"digest": "mine"})
    assert list(tmp_path.iterdir()) == []


def test_an_edited_file_is_refused_with_advice(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, CONTENT)
    path.write_text(path.read_text().replace("2.5", "2.6"))
    with pytest.raises(DamagedFileError, match=r"a\.json is damaged or was edited: .* its digest; train again"):
        read_json(path, advice="train again")


@pytest.mark.parametrize("content", [b"", b"{}", b'{"numbers": [1]}', b"\xff\xfe", b"probattn-sha256"])
def test_a_file_without_a_digest_is_refused_as_that_of_another_program(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(
        DamagedFileError,
        match=r"a\.json is damaged, or was not written by this version .* no digest; restore",
    ):
        read_json(path)


@pytest.mark.parametrize(
    "content", [UNSEALED, f'["{UNSEALED}"]', f'"{UNSEALED}"', 10**5 * "[" + UNSEALED, f'{{"a": "{UNSEALED}"}}']
)
def test_another_json_with_a_digest_is_refused(tmp_path, content):
    write_sealed(tmp_path / "a.json", content.encode())
    with pytest.raises(DamagedFileError, match=r"a\.json is damaged: it is no JSON object with a digest"):
        read_json(tmp_path / "a.json")


def test_what_is_no_file_is_missing(tmp_path):
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")  # reading it would wait for ever
    (tmp_path / "file").touch()
    for name in ("none.json", "folder.json", "pipe.json", "file/a.json"):
        with pytest.raises(FileNotFoundError, match=f"there is no file .*{name}; restore it"):
            read_json(tmp_path / name)
