"""CoLA (Warstadt et al. 2019) and IMDB reviews (Maas et al. 2011), from the corpora's own files."""

import re
import tarfile
import zipfile
from pathlib import Path

import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.text.labelled_texts import Texts, decode

CLASSES = {
    "cola": ("unacceptable", "acceptable"),
    "imdb": ("negative", "positive"),
}  # names of the labels 0 and 1
# Sentences of each file of CoLA, in versions 1.0 and 1.1; folders of IMDB in the order of the data,
# and their reviews.
LINES = {"in_domain_train": 8_551, "in_domain_dev": 527, "out_of_domain_dev": 516}
FOLDERS = ("train/neg", "train/pos", "test/neg", "test/pos")
PER_FOLDER = 12_500
# Paths under the root folder, of which the first that exists is read, and where they are from.
PLACES = {
    "cola": ("cola_public", "cola_public.zip", "cola_public_1.1.zip"),
    "imdb": ("aclImdb", "aclImdb.tar.xz", "aclImdb_v1.tar.gz"),
}
_ORIGINS = {
    "cola": "https://nyu-mll.github.io/CoLA",
    "imdb": "https://ai.stanford.edu/~amaas/data/sentiment",
}
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


def read(name: str, root: Path) -> list[Texts]:
    """Return the parts of a corpus; IMDB is one part.

    Those of CoLA are the in-domain training and development and the out-of-domain development
    sentences. Archives are not unpacked to disk.

    Raises:
        DatasetError: the files are missing, incomplete or damaged.
    """
    places = [root / place for place in PLACES[name]]
    source = next(filter(Path.exists, places), places[-1])
    try:
        return _read_cola(source) if name == "cola" else [_read_imdb(source)]
    except Exception as error:  # damage raises errors of many types
        remedy = (
            f"Put {places[-1].name} from {_ORIGINS[name]} there, or name another folder by --data "
            "or PROBATTN_DATA"
        )
        raise DatasetError(
            f"cannot read {name} in {source.absolute()}: {error}. {remedy}."
        ) from error


def _read_cola(source: Path) -> list[Texts]:
    """Read lines of four tab-separated columns (source, label, the author's mark, sentence) without
    quoting."""
    folder = zipfile.Path(source, "cola_public/") if source.is_file() else source
    parts = []
    for name, number in LINES.items():
        text = decode((folder / "raw" / f"{name}.tsv").read_bytes(), where=f"{name}.tsv")
        rows = [line.split("\t") for line in text.split("\n") if line]
        if len(rows) != number or any(
            len(row) != 4 or row[1] not in ("0", "1") or not row[3].strip() for row in rows
        ):
            raise ValueError(f"{name}.tsv must have {number:,} lines of 4 columns")
        labels = torch.tensor([int(row[1]) for row in rows])
        parts.append(Texts(tuple(row[3].strip() for row in rows), labels))
    return parts


def _read_imdb(source: Path) -> Texts:
    """Read reviews in the order of :data:`FOLDERS`, then of file names. HTML line breaks become
    spaces."""
    contents = _read_reviews(source)
    reviews = list[str]()
    labels = list[int]()
    for folder in FOLDERS:
        paths = sorted(path for path in contents if f"{folder}/" in path)
        texts = [_BREAK.sub(" ", decode(contents[path], where=path)).strip() for path in paths]
        inside = list(filter(None, texts))
        if len(inside) != PER_FOLDER:
            number = {folder: len(inside)}
            raise ValueError(f"there are {number} reviews with text, expected {PER_FOLDER:,}")
        reviews += inside
        labels += [int(folder.endswith("pos"))] * PER_FOLDER
    return Texts(tuple(reviews), torch.tensor(labels))


def _read_reviews(source: Path) -> dict[str, bytes]:
    """Return the contents of the reviews in a folder or a tar archive by their paths, without
    hidden files."""
    matches = re.compile(rf".*({'|'.join(FOLDERS)})/[^./][^/]*\.txt").fullmatch
    if source.is_dir():
        return {
            path: file.read_bytes()
            for file in source.rglob("*.txt")
            if matches(path := file.as_posix())
        }
    with tarfile.open(source) as archive:
        members = (member for member in archive if member.isfile() and matches(member.name))
        return {
            member.name: file.read() for member in members if (file := archive.extractfile(member))
        }
