"""CoLA (Warstadt et al. 2019) and IMDB reviews (Maas et al. 2011), from the corpora's own files."""

import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.text.labelled_texts import Texts, decode

CLASSES = {"cola": ("unacceptable", "acceptable"), "imdb": ("negative", "positive")}  # names of the labels 0 and 1
# Sentences of each file of CoLA, in versions 1.0 and 1.1; folders of IMDB in the order of the data, and their reviews.
LINES = {"in_domain_train": 8_551, "in_domain_dev": 527, "out_of_domain_dev": 516}
FOLDERS, PER_FOLDER = ("train/neg", "train/pos", "test/neg", "test/pos"), 12_500
# Paths under the root folder, of which the first that exists is read; where they are from; and the files in them.
PLACES = {
    "cola": ("cola_public/raw", "raw", "cola_public.zip", "cola_public_1.1.zip"),
    "imdb": ("aclImdb", "aclImdb.tar.xz", "aclImdb_v1.tar.gz"),
}
_SOURCES = {
    "cola": "cola_public_1.1.zip from https://nyu-mll.github.io/CoLA",
    "imdb": "aclImdb_v1.tar.gz from https://ai.stanford.edu/~amaas/data/sentiment",
}
_FILES = {
    "cola": re.compile(r"(cola_public/)?raw/\w+\.tsv"),
    "imdb": re.compile(rf".*({'|'.join(FOLDERS)})/[^./][^/]*\.txt"),
}
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


def read_cola(root: Path) -> list[Texts]:
    """Return the in-domain training, in-domain development and out-of-domain development part.

    A line has four tab-separated columns (source, label, the author's mark, sentence) without quoting. An archive is
    not unpacked to disk.

    Raises:
        DatasetError: the files are missing, incomplete or damaged.
    """
    source, parts = _source("cola", root), []
    texts = {Path(path).stem: text for path, text in _texts("cola", source).items()}
    for part, number in LINES.items():
        rows = [line.split("\t") for line in texts.get(part, "").split("\n") if line]
        if len(rows) != number or any(len(row) != 4 or row[1] not in ("0", "1") or not row[3].strip() for row in rows):
            raise _broken("cola", f"{part}.tsv in {source.absolute()} has not {number:,} lines of 4 columns")
        labels = torch.tensor([int(row[1]) for row in rows])
        parts.append(Texts(tuple(row[3].strip() for row in rows), labels))
    return parts


def read_imdb(root: Path) -> Texts:
    """Return all reviews in a fixed order: by :data:`FOLDERS`, then by file name. HTML line breaks become spaces.

    Raises:
        DatasetError: the reviews are missing, incomplete or damaged.
    """
    source = _source("imdb", root)
    texts = {path: _BREAK.sub(" ", content).strip() for path, content in _texts("imdb", source).items()}
    folders = {name: sorted(path for path in texts if f"{name}/" in path and texts[path]) for name in FOLDERS}
    counts = {name: len(paths) for name, paths in folders.items()}
    if set(counts.values()) != {PER_FOLDER}:
        raise _broken("imdb", f"{source.absolute()} has {counts} reviews with text, expected {PER_FOLDER:,} each")
    reviews = tuple(texts[path] for paths in folders.values() for path in paths)
    labels = torch.tensor([int(folder.endswith("pos")) for folder in FOLDERS]).repeat_interleave(PER_FOLDER)
    return Texts(reviews, labels)


def _source(name: str, root: Path) -> Path:
    """Return the first place of a corpus that exists."""
    for place in PLACES[name]:
        if (root / place).exists():
            return root / place
    raise _broken(name, f"{name} is not in {root.absolute()} ({', '.join(PLACES[name])})")


def _broken(name: str, problem: str) -> DatasetError:
    remedy = "or give the folder that holds the corpus with --data or the environment variable PROBATTN_DATA"
    return DatasetError(f"{problem}. Put {_SOURCES[name]} there, {remedy}.")


def _texts(name: str, source: Path) -> dict[str, str]:
    """Return the texts of a corpus by their path in its folder or archive."""
    try:
        files = ((path, read) for path, read in _files(source) if _FILES[name].fullmatch(path))
        return {path: decode(read(), where=f"{source.absolute()}, {path}") for path, read in files}
    except Exception as error:  # damage raises errors of many types
        raise _broken(name, f"cannot read {source.absolute()}: {error}") from error


def _files(source: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield the path of each file of a folder or an archive, and the function that reads it."""
    if source.is_dir():
        for file in source.rglob("*.*"):
            yield f"{source.name}/{file.relative_to(source).as_posix()}", file.read_bytes
    elif source.suffix == ".zip":
        with zipfile.ZipFile(source) as archive:
            for name in archive.namelist():
                yield name, partial(archive.read, name)
    else:
        with tarfile.open(source) as archive:
            for member in filter(tarfile.TarInfo.isfile, archive):
                yield member.name, archive.extractfile(member).read
            while archive.fileobj.read(2**20):  # the checksum is at the end
                pass
