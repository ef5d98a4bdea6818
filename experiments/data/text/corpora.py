"""CoLA (Warstadt et al. 2019) and IMDB reviews (Maas et al. 2011), from the corpora's own files."""

import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pandas as pd
import torch

from probattn.experiments.data import cache
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.root import PLACES
from probattn.experiments.data.text.labelled_texts import Texts, decode

CLASSES = {"cola": ("unacceptable", "acceptable"), "imdb": ("negative", "positive")}
"""Names of the labels 0 and 1 of each corpus."""
LINES = {"in_domain_train": 8_551, "in_domain_dev": 527, "out_of_domain_dev": 516}
"""Number of sentences of each file of CoLA, in versions 1.0 and 1.1."""
FOLDERS = ("train/neg", "train/pos", "test/neg", "test/pos")
"""Folders of IMDB, in the order of the data."""
PER_FOLDER = 12_500
"""Number of reviews per folder."""
_SOURCES = {
    "cola": "cola_public_1.1.zip from https://nyu-mll.github.io/CoLA",
    "imdb": "aclImdb_v1.tar.gz from https://ai.stanford.edu/~amaas/data/sentiment",
}
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


def read_cola(root: Path) -> list[Texts]:
    """Return the in-domain training, in-domain development and out-of-domain development part.

    A line has four tab-separated columns (source, label, the author's mark, sentence) without quoting. An archive is
    not unpacked to disk.

    Raises:
        DatasetError: the files are missing, incomplete or damaged.
    """
    parts, source = [], _source("cola", root)
    for part, expected in LINES.items():
        where = f"{source.absolute()}, {part}.tsv"
        try:
            content = io.StringIO(decode(_cola_file(source, f"{part}.tsv"), where=where))
            options = {"sep": "\t", "quoting": 3, "lineterminator": "\n", "keep_default_na": False, "dtype": str}
            lines = pd.read_csv(content, header=None, **options)
            texts = Texts(tuple(lines[3].str.strip()), torch.tensor([("0", "1").index(label) for label in lines[1]]))
        except (OSError, LookupError, ValueError, TypeError, RuntimeError, zipfile.BadZipFile) as error:
            raise _broken("cola", f"cannot read {where}: {error}") from error
        if lines.shape != (expected, 4):
            raise _broken("cola", f"{where} has (lines, columns) {lines.shape}, expected {(expected, 4)}")
        parts.append(texts)
    return parts


def read_imdb(root: Path) -> Texts:
    """Return all reviews in a fixed order: by :data:`FOLDERS`, then by file name. HTML line breaks become spaces.

    The texts are cached in ``<root>/.probattn-cache``, if it is writable, until the size or modification time of the
    archive or of a folder changes.

    Raises:
        DatasetError: the reviews are missing, incomplete or damaged.
    """
    source = _source("imdb", root)
    paths = [source, *(path for path in (source / folder for folder in FOLDERS) if path.is_dir())]
    stamp = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths]

    def extract() -> list[str]:
        folders: dict[str, dict[str, str]] = {folder: {} for folder in FOLDERS}
        try:
            for path, content in _imdb_files(source):
                text = _BREAK.sub(" ", decode(content, where=f"{source.absolute()}/{path}")).strip()
                folders["/".join(path.parts[-3:-1])] |= {path.name: text} if text else {}
        except (OSError, EOFError, tarfile.TarError, lzma.LZMAError, zlib.error) as error:
            raise _broken("imdb", f"cannot read {source.absolute()}: {error}") from error
        counts = {folder: len(texts) for folder, texts in folders.items()}
        if set(counts.values()) != {PER_FOLDER}:
            raise _broken("imdb", f"{source.absolute()} has {counts} reviews with text, expected {PER_FOLDER:,} each")
        return [text for texts in folders.values() for _, text in sorted(texts.items())]

    texts = cache.read_or_compute(root / cache.FOLDER / "imdb.pt", stamp=stamp, compute=extract)
    labels = torch.tensor([int(folder.endswith("pos")) for folder in FOLDERS]).repeat_interleave(PER_FOLDER)
    return Texts(tuple(texts), labels)


def _source(name: str, root: Path) -> Path:
    """Return the first place of a corpus that exists."""
    source = next((path for path in (root / place for place in PLACES[name]) if path.exists()), None)
    if source is None:
        raise _broken(name, f"{name} is not in {root.absolute()} ({', '.join(PLACES[name])})")
    return source


def _broken(name: str, problem: str) -> DatasetError:
    remedy = "or give the folder that holds the corpus with --data or the environment variable PROBATTN_DATA"
    return DatasetError(f"{problem}. Put {_SOURCES[name]} there, {remedy}.")


def _cola_file(source: Path, name: str) -> bytes:
    """Return a file of CoLA's folder, or of the folder ``raw`` of an archive."""
    if source.is_dir():
        return (source / name).read_bytes()
    with zipfile.ZipFile(source) as archive:
        paths = [path for path in archive.namelist() if PurePosixPath(path).match(f"raw/{name}")]
        return archive.read(next(path for path in paths if not path.startswith("__MACOSX")))


def _imdb_files(source: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield path and content of each review, from a folder or an archive of it."""
    if source.is_dir():
        for folder in FOLDERS:
            for file in (source / folder).glob("[!.]*.txt"):
                yield PurePosixPath(folder, file.name), file.read_bytes()
        return
    with tarfile.open(source) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if member.isfile() and "/".join(path.parts[-3:-1]) in FOLDERS and path.match("[!.]*.txt"):
                yield path, archive.extractfile(member).read()
        while archive.fileobj.read(2**20):  # the checksum is at the end
            pass
