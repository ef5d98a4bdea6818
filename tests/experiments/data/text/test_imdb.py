import io
import lzma
import os
import tarfile

import pytest
import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.text import imdb
from probattn.experiments.data.text.imdb import FOLDERS, read

EACH = 3
NAMES = ("0_9.txt", "10_2.txt", "2_7.txt")
"""Sorted by name, which is not the order of their numbers."""
EXPECTED = tuple(f"{folder} {name} “very” good" for folder in FOLDERS for name in NAMES)


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch):
    monkeypatch.setattr(imdb, "PER_FOLDER", EACH)


def reviews():
    contents = {f"{folder}/{name}": f"{folder} {name} “very”<br />good " for folder in FOLDERS for name in NAMES}
    return {name: content.encode() for name, content in reversed(contents.items())}


def write_folder(root, contents=None):
    for name, content in (reviews() if contents is None else contents).items():
        path = root / "aclImdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write_archive(root, contents=None, *, name="aclImdb.tar.xz", prefix="aclImdb/"):
    extra = {"README": b"\xff", "train/unsup/1_0.txt": b"\xff", "train/pos/._0_9.txt": b"\xff", "imdb.vocab": b"the"}
    with tarfile.open(root / name, f"w:{name.rsplit('.', 1)[1]}") as archive:
        for file, content in ((reviews() if contents is None else contents) | extra).items():
            member = tarfile.TarInfo(prefix + file)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


WRITERS = {
    "folder": write_folder,
    "xz": write_archive,
    "gz": lambda root, contents=None: write_archive(root, contents, name="aclImdb_v1.tar.gz", prefix="./aclImdb/"),
}


@pytest.fixture(params=WRITERS)
def write(request):
    return WRITERS[request.param]


@pytest.fixture
def sources_read(monkeypatch):
    """The sources that were read and not taken from the cache."""
    found = []
    clean = imdb._clean
    monkeypatch.setattr(imdb, "_clean", lambda source, *rest: found.append(source.name) or clean(source, *rest))
    return found


def assert_whole(data):
    assert data.texts == EXPECTED
    assert data.labels.tolist() == [0] * EACH + [1] * EACH + [0] * EACH + [1] * EACH


def test_all_reviews_in_a_fixed_order(tmp_path, write):
    write(tmp_path)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert_whole(read(tmp_path))
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert written == {tmp_path / ".probattn-cache" / "imdb.pt"}


def test_the_second_time_the_cache_is_read(tmp_path, write, sources_read):
    write(tmp_path)
    assert_whole(read(tmp_path))
    assert_whole(read(tmp_path))
    assert len(sources_read) == 1


def test_a_changed_source_is_read_anew(tmp_path, write, sources_read):
    write(tmp_path)
    read(tmp_path)
    changed = reviews() | {"test/pos/0_9.txt": b"changed"}
    del changed["train/neg/0_9.txt"]
    if (tmp_path / "aclImdb").is_dir():
        (tmp_path / "aclImdb/train/neg/0_9.txt").unlink()
    write(tmp_path, changed | {"train/neg/0_1.txt": b"new"})
    for path in [tmp_path / "aclImdb" / folder for folder in FOLDERS] + list(tmp_path.glob("*.tar.*")):
        if path.exists():
            os.utime(path, ns=(1, 10**18))
    data = read(tmp_path)
    assert (data.texts[0], data.texts[9]) == ("new", "changed")
    assert len(sources_read) == 2


def test_a_folder_comes_before_an_archive_and_shares_no_cache_with_it(tmp_path, sources_read):
    write_archive(tmp_path)
    read(tmp_path)
    write_folder(tmp_path)
    read(tmp_path)
    assert sources_read == ["aclImdb.tar.xz", "aclImdb"]


@pytest.mark.parametrize("damage", [b"", b"{"])
def test_a_damaged_cache_is_made_again(tmp_path, write, sources_read, damage):
    write(tmp_path)
    read(tmp_path)
    path = tmp_path / ".probattn-cache" / "imdb.pt"
    valid = torch.load(path, weights_only=True)
    assert valid["value"] == list(EXPECTED)
    path.write_bytes(damage)
    assert_whole(read(tmp_path))
    assert len(sources_read) == 2
    assert torch.load(path, weights_only=True) == valid


def test_a_folder_that_cannot_be_written_is_fine(tmp_path, write, monkeypatch):
    write(tmp_path)
    (tmp_path / ".probattn-cache").write_text("a file where the folder would be")
    assert_whole(read(tmp_path))
    assert (tmp_path / ".probattn-cache").read_text() == "a file where the folder would be"


@pytest.mark.parametrize("text", ["a<br />b", "a<br/>b", "a<BR>b", "<br /> a<br />b<br />"])
def test_breaks_become_spaces_and_other_marks_stay(tmp_path, text):
    write_folder(tmp_path, reviews() | {"train/neg/0_9.txt": f"{text} <i>c</i>".encode()})
    assert read(tmp_path).texts[0] == "a b <i>c</i>" if not text.endswith(">") else "a b  <i>c</i>"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b" <br />\n<br />", "is empty"), (b"caf\xe9.", "is not UTF-8: byte 0xe9 at position 3")],
)
def test_a_damaged_review_is_named(tmp_path, write, content, message):
    write(tmp_path, reviews() | {"test/pos/10_2.txt": content})
    with pytest.raises(DatasetError, match=rf"aclImdb.*/test/pos/10_2\.txt {message}.*; put an intact copy there"):
        read(tmp_path)
    assert not (tmp_path / ".probattn-cache").exists()


def test_folders_with_fewer_or_more_reviews_are_named(tmp_path, write):
    contents = reviews() | {"test/pos/9_9.txt": b"more"}
    del contents["train/pos/2_7.txt"]
    write(tmp_path, contents)
    with pytest.raises(DatasetError, match="train/pos holds 2; test/pos holds 4 reviews, expected 3 each"):
        read(tmp_path)


def test_a_missing_folder_is_named(tmp_path, write):
    write(tmp_path, {name: content for name, content in reviews().items() if not name.startswith("test/neg")})
    with pytest.raises(DatasetError, match="not complete: test/neg holds 0 reviews, expected 3 each"):
        read(tmp_path)


def test_a_missing_corpus_says_where_it_was_looked_for_and_what_to_do(tmp_path):
    with pytest.raises(DatasetError) as failure:
        read(tmp_path)
    for part in (str(tmp_path), "train/neg", "aclImdb.tar.xz", "aclImdb_v1.tar.gz", "ai.stanford.edu", "PROBATTN_DATA"):
        assert part in str(failure.value)


@pytest.mark.parametrize("kind", ["xz", "gz"])
@pytest.mark.parametrize("damage", ["cut", "bit", "checksum", "other"])
def test_a_damaged_archive_is_named(tmp_path, kind, damage):
    noise = torch.randint(97, 123, (20_000,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    WRITERS[kind](tmp_path, {"train/neg/0_9.txt": noise.numpy().tobytes()} | reviews())
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    elif damage == "bit":
        content[len(content) // 2] ^= 255
    elif damage == "checksum":
        content[-6] ^= 255  # that of the text (gz) or of the last part of the file (xz)
    else:
        content = b"<html>not found</html>"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=rf"cannot read .*{path.name}: .*stanford"):
        read(tmp_path)


def test_a_link_in_an_archive_is_not_followed(tmp_path):
    contents = reviews()
    del contents["train/neg/0_9.txt"]
    with tarfile.open(tmp_path / "plain.tar", "w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"aclImdb/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("aclImdb/train/neg/0_9.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    (tmp_path / "aclImdb.tar.xz").write_bytes(lzma.compress((tmp_path / "plain.tar").read_bytes()))
    with pytest.raises(DatasetError, match="train/neg holds 2 reviews"):
        read(tmp_path)
