"""IMDB reviews (Maas et al. 2011), from the original folders or from an archive of them, cached."""

import gzip
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import torch

from probattn.experiments.data import cache
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.text.labelled_texts import Texts, decode

CLASSES = ("negative", "positive")
"""Names of the labels 0 and 1."""

FOLDERS = ("train/neg", "train/pos", "test/neg", "test/pos")
"""The folders of the reviews, in the order of the data."""

PER_FOLDER = 12_500
"""Number of reviews per folder."""

MAX_REVIEW_BYTES, MAX_ARCHIVE_BYTES = 2**20, 2**30
"""Limits of a review and of an unpacked archive, far above those of IMDB."""

_ARCHIVES = {"aclImdb.tar.xz": lzma.open, "aclImdb_v1.tar.gz": gzip.open}
_MEMBER = re.compile(r"(?:\./)?aclImdb/(train/neg|train/pos|test/neg|test/pos)/([^/.][^/]*\.txt)")
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_ADVICE = (
    "Put aclImdb_v1.tar.gz from https://ai.stanford.edu/~amaas/data/sentiment there, or give the folder that holds the "
    "reviews with --data or the environment variable PROBATTN_DATA."
)


def read(root: Path) -> Texts:
    """Return all reviews in a fixed order: by :data:`FOLDERS`, then by file name.

    They are read from the first place under ``root`` that exists: the folder ``aclImdb``, or an archive of it,
    ``aclImdb.tar.xz`` or ``aclImdb_v1.tar.gz``, which is not unpacked to disk. HTML line breaks become spaces. The
    texts are cached in ``<root>/.probattn-cache``, if it is writable; they are read again when the size or modification
    time of the archive or of a folder changes. Delete the cache after a change that alters neither, such as editing a
    file in place.

    Raises:
        DatasetError: no place exists; a folder does not have :data:`PER_FOLDER` reviews; or a review is empty or not
            UTF-8: the file is named.
    """
    source = next((path for path in (root / name for name in ("aclImdb", *_ARCHIVES)) if path.exists()), None)
    if source is None:
        raise DatasetError(
            f"IMDB is not in {root.absolute()}. Looked for the folder aclImdb with {', '.join(FOLDERS)} in it, and for "
            f"{' and '.join(_ARCHIVES)}. {_ADVICE}"
        )
    labels = torch.tensor([folder.endswith("pos") for folder in FOLDERS]).long().repeat_interleave(PER_FOLDER)

    def extract() -> list[str]:
        return _clean(source, _from_folder(source) if source.is_dir() else _from_archive(source))

    path = root / cache.FOLDER / "imdb.pt"
    return Texts(tuple(cache.read_or_compute(path, stamp=_stamp(source), compute=extract)), labels)


def _from_folder(source: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield folder, file name and content of each review."""
    for folder in FOLDERS:
        for path in (source / folder).glob("[!.]*.txt"):
            yield folder, path.name, path.read_bytes()


def _from_archive(source: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield folder, file name and content of each review."""
    try:
        with _ARCHIVES[source.name](source) as stream:
            limited = _LimitedStream(stream, limit=MAX_ARCHIVE_BYTES)
            with tarfile.open(fileobj=limited, mode="r|") as archive:
                for member in archive:
                    match = _MEMBER.fullmatch(member.name)
                    if match and member.isfile():
                        if member.size > MAX_REVIEW_BYTES:
                            raise tarfile.TarError(f"{member.name} would unpack to {member.size:,} bytes")
                        yield *match.groups(), archive.extractfile(member).read()
            while limited.read(2**20):  # the checksum is at the end, and tarfile stops early at damage
                pass
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError, zlib.error) as error:
        raise DatasetError(f"cannot read {source.absolute()}: {error}. {_ADVICE}") from error


class _LimitedStream:
    """A decompressed stream that raises an error after ``limit`` bytes."""

    def __init__(self, stream: IO[bytes], *, limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise tarfile.TarError("it unpacks to more than IMDB does")
        return content


def _clean(source: Path, reviews: Iterator[tuple[str, str, bytes]]) -> list[str]:
    """Return the texts of all reviews in order; raise DatasetError if some are missing."""
    folders: dict[str, dict[str, str]] = {folder: {} for folder in FOLDERS}
    for folder, name, content in reviews:
        where = f"{source.absolute()}/{folder}/{name}"
        text = _BREAK.sub(" ", decode(content, where=where)).strip()
        if not text:
            raise DatasetError(f"{where} is empty; put an intact copy there")
        folders[folder][name] = text
    uneven = [f"{folder} holds {len(texts):,}" for folder, texts in folders.items() if len(texts) != PER_FOLDER]
    if uneven:
        raise DatasetError(
            f"{source.absolute()} is not complete: {'; '.join(uneven)} reviews, expected {PER_FOLDER:,} each. {_ADVICE}"
        )
    return [text for texts in folders.values() for _, text in sorted(texts.items())]


def _stamp(source: Path) -> list[list[str | int]]:
    """Return the state of ``source`` that a cache of it must match."""
    paths = [source, *(path for path in (source / folder for folder in FOLDERS) if path.is_dir())]
    return [[path.name, (status := path.stat()).st_size, status.st_mtime_ns] for path in paths]
