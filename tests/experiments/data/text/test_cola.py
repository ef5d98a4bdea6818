import zipfile

import pytest
import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.text import cola
from probattn.experiments.data.text.cola import read

CONTENT = {
    "in_domain_train": 'gj04\t1\t\tHe said "go.\n'
    'gj04\t0\t*\tThey "said" went\u2028him. \nks08\t1\t??\t"\'Twas\x0cnaïve.\n',
    "in_domain_dev": "bc01\t0\t*\tMary sleeped.\nbc01\t1\t\tMary slept.\n",
    "out_of_domain_dev": "clc95\t1\t\tSomebody left - guess who.",
}
EXPECTED = [
    (('He said "go.', 'They "said" went\u2028him.', "\"'Twas\x0cnaïve."), [1, 0, 1]),
    (("Mary sleeped.", "Mary slept."), [0, 1]),
    (("Somebody left - guess who.",), [1]),
]


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch):
    monkeypatch.setattr(cola, "LINES", {"in_domain_train": 3, "in_domain_dev": 2, "out_of_domain_dev": 1})


def write_files(folder, **changed):
    folder.mkdir(parents=True)
    for part, content in (CONTENT | changed).items():
        (folder / f"{part}.tsv").write_bytes(content.encode() if isinstance(content, str) else content)


def write_archive(path, above):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, content in CONTENT.items():
            archive.writestr(f"{above}tokenized/{part}.tsv", "a ca n't\n")
            archive.writestr(f"__MACOSX/{above}raw/{part}.tsv", b"\xff")
            archive.writestr(f"{above}raw/{part}.tsv", content)


def labelled_texts(parts):
    assert all(part.labels.dtype == torch.int64 for part in parts)
    return [(part.texts, part.labels.tolist()) for part in parts]


@pytest.mark.parametrize("folder", ["cola_public/raw", "raw"])
def test_folders_quotes_and_odd_line_separators_are_no_structure(tmp_path, folder):
    write_files(tmp_path / folder)
    assert labelled_texts(read(tmp_path)) == EXPECTED


@pytest.mark.parametrize("name", ["cola_public.zip", "cola_public_1.1.zip"])
@pytest.mark.parametrize("above", ["cola_public/", ""])
def test_archives_are_read_where_they_lie(tmp_path, name, above):
    write_archive(tmp_path / name, above)
    assert labelled_texts(read(tmp_path)) == EXPECTED
    assert [path.name for path in tmp_path.rglob("*")] == [name]


def test_folders_come_before_archives(tmp_path):
    write_files(tmp_path / "raw")
    (tmp_path / "cola_public.zip").write_bytes(b"damaged")
    assert labelled_texts(read(tmp_path)) == EXPECTED


def test_windows_line_ends(tmp_path):
    write_files(tmp_path / "raw", in_domain_dev=CONTENT["in_domain_dev"].replace("\n", "\r\n"))
    assert labelled_texts(read(tmp_path)) == EXPECTED


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"bc01\t1\tMary slept.", r"has 3 tab-separated columns, expected 4 .*: 'bc01\\t1\\tMary slept.'"),
        (b"bc01\t1\t\tMary\tslept.", "has 5 tab-separated columns"),
        (b"", "has 1 tab-separated columns"),
        (b"bc01\t2\t\tMary slept.", "has the label '2', expected 0 or 1"),
        (b"bc01\t-1\t\tMary slept.", "has the label '-1', expected 0 or 1"),
        (b"bc01\t\t\tMary slept.", "has the label '', expected 0 or 1"),
        (b"bc01\t1\t\t", "has an empty sentence"),
        (b"bc01\t1\t\t \xc2\xa0 ", "has an empty sentence"),
        (b"bc01\t1\t\tna\xefve.", "is not UTF-8: byte 0xef at position 10"),
        (b"\xff\xfebc01\t1\t\tMary.", "is not UTF-8: byte 0xff at position 0"),
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_a_broken_line_is_named(tmp_path, line, message, number):
    lines = CONTENT["in_domain_dev"].encode().split(b"\n")[:2]
    lines[number - 1] = line
    write_files(tmp_path / "raw", in_domain_dev=b"\n".join(lines) + b"\n")
    with pytest.raises(DatasetError, match=rf"raw/in_domain_dev\.tsv, line {number} {message}.*; put an intact copy"):
        read(tmp_path)


def test_a_line_in_an_archive_is_named(tmp_path):
    write_archive(tmp_path / "cola_public.zip", "cola_public/")
    with zipfile.ZipFile(tmp_path / "cola_public.zip") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "cola_public.zip", "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content.replace(b"ks08\t1", b"ks08\t7"))
    with pytest.raises(DatasetError, match=r"cola_public\.zip/in_domain_train\.tsv, line 3 has the label '7'"):
        read(tmp_path)


@pytest.mark.parametrize("content", ["bc01\t0\t*\tMary sleeped.\n", CONTENT["in_domain_dev"] + "x\t1\t\tMore.\n"])
def test_a_file_with_fewer_or_more_lines_is_refused(tmp_path, content):
    write_files(tmp_path / "raw", in_domain_dev=content)
    found = content.count("\n")
    with pytest.raises(DatasetError, match=rf"in_domain_dev\.tsv has {found} lines, expected 2"):
        read(tmp_path)


def test_missing_files_are_named(tmp_path):
    write_files(tmp_path / "raw")
    (tmp_path / "raw" / "out_of_domain_dev.tsv").unlink()
    with pytest.raises(DatasetError, match=r"raw is incomplete: out_of_domain_dev\.tsv missing\. Put .*nyu-mll"):
        read(tmp_path)


def test_a_missing_corpus_says_where_it_was_looked_for_and_what_to_do(tmp_path):
    with pytest.raises(DatasetError) as failure:
        read(tmp_path / "absent")
    message = str(failure.value)
    for part in (
        str(tmp_path / "absent" / "cola_public" / "raw"),
        "in_domain_train.tsv",
        "cola_public.zip",
        "nyu-mll.github.io/CoLA",
        "--data",
        "PROBATTN_DATA",
    ):
        assert part in message


@pytest.mark.parametrize("damage", ["cut", "bit", "other"])
def test_a_damaged_archive_is_named(tmp_path, damage):
    path = tmp_path / "cola_public.zip"
    write_archive(path, "cola_public/")
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    elif damage == "bit":
        name = "cola_public/raw/in_domain_train.tsv"
        with zipfile.ZipFile(path) as archive:
            header = archive.getinfo(name).header_offset
        content[header + 30 + len(name) + 20] ^= 255
    else:
        content = b"<html>not found</html>"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"cannot read .*cola_public\.zip: .*nyu-mll"):
        read(tmp_path)


def test_an_archive_of_something_else_is_incomplete(tmp_path):
    with zipfile.ZipFile(tmp_path / "cola_public.zip", "w") as archive:
        archive.writestr("raw/other.tsv", "")
    with pytest.raises(DatasetError, match="incomplete: in_domain_train.tsv, in_domain_dev.tsv, out_of_domain_dev.tsv"):
        read(tmp_path)
