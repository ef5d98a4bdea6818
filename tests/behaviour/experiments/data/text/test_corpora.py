"""CoLA and IMDB from folders and archives, whole or not at all."""

import io
import tarfile
import zipfile

import pytest

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.text import corpora
from probattn.experiments.data.text.corpora import FOLDERS, read

COLA = {
    "in_domain_train": 'gj04\t1\t\tHe said "go.\n'
    'gj04\t0\t*\tThey "said" went\u2028him. \nks08\t1\t??\t"\'Twas\x0cNA.\n',
    "in_domain_dev": "bc01\t0\t*\tMary sleeped.\nbc01\t1\t\tNA\n",
    "out_of_domain_dev": "clc95\t1\t\tSomebody left - guess who.",
}
COLA_PARTS = [
    (('He said "go.', 'They "said" went\u2028him.', "\"'Twas\x0cNA."), [1, 0, 1]),
    (("Mary sleeped.", "NA"), [0, 1]),
    (("Somebody left - guess who.",), [1]),
]
NAMES = (
    "0_9.txt",
    "10_2.txt",
    "2_7.txt",
)  # sorted by name, which is not the order of their numbers
REVIEWS = {
    f"{folder}/{name}": f"{folder}/{name}<BR />good\u2028<i>x</i> "
    for folder in FOLDERS
    for name in NAMES
}


@pytest.fixture(autouse=True)
def small_corpora(monkeypatch):
    monkeypatch.setattr(
        corpora, "LINES", {"in_domain_train": 3, "in_domain_dev": 2, "out_of_domain_dev": 1}
    )
    monkeypatch.setattr(corpora, "PER_FOLDER", 3)


def write_imdb(root, contents, name):
    contents = {path: text.encode() for path, text in reversed(contents.items())}
    if name == "aclImdb":
        for path, text in contents.items():
            (root / name / path).parent.mkdir(parents=True, exist_ok=True)
            (root / name / path).write_bytes(text)
        return
    extra = {"train/unsup/1_0.txt": b"\xff", "train/pos/._0_9.txt": b"\xff"}
    with tarfile.open(root / name, f"w:{name.rsplit('.', 1)[1]}") as archive:
        for path, text in (contents | extra).items():
            member = tarfile.TarInfo(
                f"./aclImdb/{path}" if name.endswith("gz") else f"aclImdb/{path}"
            )
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))


def test_cola_is_read_from_its_folder_or_from_the_archive_where_it_lies(tmp_path):
    """Quotes, odd line separators and NA are no structure."""
    (tmp_path / "a" / "cola_public" / "raw").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    with zipfile.ZipFile(
        tmp_path / "b" / "cola_public_1.1.zip", "w", zipfile.ZIP_DEFLATED
    ) as archive:
        for part, content in COLA.items():
            (tmp_path / "a" / "cola_public" / "raw" / f"{part}.tsv").write_bytes(content.encode())
            archive.writestr(f"__MACOSX/cola_public/raw/{part}.tsv", b"\xff")
            archive.writestr(f"cola_public/tokenized/{part}.tsv", "a ca n't\n")
            archive.writestr(f"cola_public/raw/{part}.tsv", content)
    for folder in "ab":
        assert [
            (part.texts, part.labels.tolist()) for part in read("cola", tmp_path / folder)
        ] == COLA_PARTS
    assert [path.name for path in (tmp_path / "b").rglob("*")] == ["cola_public_1.1.zip"]


@pytest.mark.parametrize("name", ["aclImdb", "aclImdb.tar.xz", "aclImdb_v1.tar.gz"])
def test_all_reviews_come_in_a_fixed_order(tmp_path, name):
    write_imdb(tmp_path, REVIEWS, name)
    (data,) = read("imdb", tmp_path)
    assert data.texts == tuple(f"{path} good\u2028<i>x</i>" for path in REVIEWS)
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1] * 2


@pytest.mark.parametrize("change", [{"test/pos/10_2.txt": " <br />"}, {"test/pos/9_9.txt": "more"}])
def test_an_archive_of_imdb_that_is_not_whole_is_named(tmp_path, change):
    write_imdb(tmp_path, REVIEWS | change, "aclImdb_v1.tar.gz")
    with pytest.raises(DatasetError, match="'test/pos': [24]"):
        read("imdb", tmp_path)
