"""CoLA (Warstadt et al. 2019) and IMDB reviews (Maas et al. 2011), from the corpora's own files."""

import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pandas as pd
import torch

from probattn.experiments.data import cache
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.text.labelled_texts import Texts, decode

CLASSES = {"cola": ("unacceptable", "acceptable"), "imdb": ("negative", "positive")}
"""Names of the labels 0 and 1 of each corpus."""
LINES = {"in_domain_train": 8_551, "in_domain_dev": 527, "out_of_domain_dev": 516}
"""Number of sentences of each file of CoLA, in versions 1.0 and 1.1."""
FOLDERS = ("train/neg", "train/pos", "test/neg", "test/pos")
"""Folders of IMDB, in the order of the data."""
PER_FOLDER = 12_500
"""Number of reviews per folder."""
PLACES = {
    "cola": ("cola_public/raw", "raw", "cola_public.zip", "cola_public_1.1.zip"),
    "imdb": ("aclImdb", "aclImdb.tar.xz", "aclImdb_v1.tar.gz"),
}
"""Paths under the root folder, of which the first that exists is read."""
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
    source = _source("cola", root)
    try:
        files = {path.stem: decode(content, where=str(path)) for path, content in _files(source, wanted=_of_cola)}
        return [_sentences(files[part], number) for part, number in LINES.items()]
    except (OSError, LookupError, ValueError, TypeError, RuntimeError, zipfile.BadZipFile) as error:
        raise _broken("cola", f"CoLA in {source.absolute()} is damaged: {error}") from error


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
            for path, content in _files(source, wanted=_of_imdb):
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


def _sentences(content: str, number: int) -> Texts:
    """Return the sentences and labels of a file of CoLA; raise ValueError if they are not ``number``."""
    options = {"sep": "\t", "quoting": 3, "lineterminator": "\n", "keep_default_na": False, "dtype": str}
    lines = pd.read_csv(io.StringIO(content), header=None, **options)
    if lines.shape != (number, 4):
        raise ValueError(f"expected {number:,} lines of 4 columns, got {lines.shape}")
    labels = [("0", "1").index(label) for label in lines[1]]
    return Texts(tuple(lines[3].str.strip()), torch.tensor(labels))


def _source(name: str, root: Path) -> Path:
    """Return the first place of a corpus that exists."""
    source = next((path for path in (root / place for place in PLACES[name]) if path.exists()), None)
    if source is None:
        raise _broken(name, f"{name} is not in {root.absolute()} ({', '.join(PLACES[name])})")
    return source


def _broken(name: str, problem: str) -> DatasetError:
    remedy = "or give the folder that holds the corpus with --data or the environment variable PROBATTN_DATA"
    return DatasetError(f"{problem}. Put {_SOURCES[name]} there, {remedy}.")


def _files(source: Path, *, wanted: Callable[[PurePosixPath], bool]) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield path and content of the files of a folder or an archive, of which ``wanted`` takes the path."""
    if source.is_dir():
        for file in source.rglob("*"):
            if wanted(path := PurePosixPath(source.name, file.relative_to(source))):
                yield path, file.read_bytes()
    elif source.suffix == ".zip":
        with zipfile.ZipFile(source) as archive:
            for path in filter(wanted, map(PurePosixPath, archive.namelist())):
                yield path, archive.read(str(path))
    else:
        with tarfile.open(source) as archive:
            for member in archive:
                if member.isfile() and wanted(path := PurePosixPath(member.name)):
                    yield path, archive.extractfile(member).read()
            while archive.fileobj.read(2**20):  # the checksum is at the end
                pass


def _of_cola(path: PurePosixPath) -> bool:
    return path.match("raw/*.tsv") and path.stem in LINES and "__MACOSX" not in path.parts


def _of_imdb(path: PurePosixPath) -> bool:
    return path.match("[!.]*.txt") and "/".join(path.parts[-3:-1]) in FOLDERS
