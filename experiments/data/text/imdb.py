"""IMDB reviews (Maas et al. 2011), from the original folders or straight from an archive of them, and cached."""

import contextlib
import gzip
import json
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import torch

from probattn.experiments.data.images.images import DatasetError
from probattn.experiments.data.text.texts import Texts, decode
from probattn.inference.io.atomic_write import atomic_write

CLASSES = ("negative", "positive")
"""Names of the labels 0 and 1."""

FOLDERS = ("train/neg", "train/pos", "test/neg", "test/pos")
"""The folders of the reviews, in the order in which they are read."""

EACH = 12_500
"""Reviews a folder."""

LARGEST, WHOLE = 2**20, 2**30
"""Bytes of a review and of all that an archive unpacks to: beyond them it is no IMDB."""

_ARCHIVES = {"aclImdb.tar.xz": lzma.open, "aclImdb_v1.tar.gz": gzip.open}
_MEMBER = re.compile(r"(?:\./)?aclImdb/(train/neg|train/pos|test/neg|test/pos)/([^/.][^/]*\.txt)")
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_ADVICE = (
    "Put aclImdb_v1.tar.gz from https://ai.stanford.edu/~amaas/data/sentiment there, or give the folder that holds the "
    "reviews with --data or the environment variable PROBATTN_DATA."
)


def read(root: Path) -> Texts:
    """All reviews in a fixed order: those of :data:`FOLDERS`, each sorted by file name.

    The first place under ``root`` is taken: the folder ``aclImdb``, or an archive of it, ``aclImdb.tar.xz`` or
    ``aclImdb_v1.tar.gz``, which is read without unpacking it. HTML line breaks become spaces. The texts are cached in
    ``<root>/.probattn-cache``, where that can be written, and the cache is made anew when the size or the modification
    time of the archive or of one of the folders changes; remove it by hand after a change that leaves both, such as
    editing a file in place.

    Raises:
        DatasetError: there is none; a folder has more or fewer reviews than :data:`EACH`; or a review is empty or not
            UTF-8: the file is named.
    """
    source = next((path for path in (root / name for name in ("aclImdb", *_ARCHIVES)) if path.exists()), None)
    if source is None:
        raise DatasetError(
            f"IMDB is not in {root.absolute()}. Looked for the folder aclImdb with {', '.join(FOLDERS)} in it, and for "
            f"{' and '.join(_ARCHIVES)}. {_ADVICE}"
        )
    stamp, cache = _stamp(source), root / ".probattn-cache" / "imdb.json"
    texts = _read_cache(cache, stamp=stamp)
    if texts is None:
        texts = _clean(source, _from_folder(source) if source.is_dir() else _from_archive(source))
        _write_cache(cache, texts, stamp=stamp)
    return Texts(tuple(texts), _labels())


def _labels() -> torch.Tensor:
    """The labels of all reviews, int64 (n,), in the order in which they are read."""
    return torch.tensor([folder.endswith("pos") for folder in FOLDERS]).long().repeat_interleave(EACH)


def _from_folder(source: Path) -> Iterator[tuple[str, str, bytes]]:
    """Folder, file name and content of each review."""
    for folder in FOLDERS:
        for path in (source / folder).glob("[!.]*.txt"):
            yield folder, path.name, path.read_bytes()


def _from_archive(source: Path) -> Iterator[tuple[str, str, bytes]]:
    """Folder, file name and content of each review."""
    try:
        with _ARCHIVES[source.name](source) as stream:
            bounded = _Bounded(stream, most=WHOLE)
            with tarfile.open(fileobj=bounded, mode="r|") as archive:
                for member in archive:
                    match = _MEMBER.fullmatch(member.name)
                    if match and member.isfile():
                        if member.size > LARGEST:
                            raise tarfile.TarError(f"{member.name} would unpack to {member.size:,} bytes")
                        yield *match.groups(), archive.extractfile(member).read()
            while bounded.read(2**20):  # the checksum comes last, and tarfile takes damage for the end
                pass
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError, zlib.error) as error:
        raise DatasetError(f"cannot read {source.absolute()}: {error}. {_ADVICE}") from error


class _Bounded:
    """A stream that has an end, though little unpacks to much."""

    def __init__(self, stream: IO[bytes], *, most: int) -> None:
        self._stream, self._left = stream, most

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise tarfile.TarError("it unpacks to more than IMDB is")
        return content


def _clean(source: Path, reviews: Iterator[tuple[str, str, bytes]]) -> list[str]:
    """The texts of all reviews, in order and complete."""
    folders: dict[str, dict[str, str]] = {folder: {} for folder in FOLDERS}
    for folder, name, content in reviews:
        where = f"{source.absolute()}/{folder}/{name}"
        text = _BREAK.sub(" ", decode(content, where=where)).strip()
        if not text:
            raise DatasetError(f"{where} is empty; put a sound copy there")
        folders[folder][name] = text
    uneven = [f"{folder} holds {len(texts):,}" for folder, texts in folders.items() if len(texts) != EACH]
    if uneven:
        raise DatasetError(
            f"{source.absolute()} is not complete: {'; '.join(uneven)} reviews, expected {EACH:,} each. {_ADVICE}"
        )
    return [text for texts in folders.values() for _, text in sorted(texts.items())]


def _stamp(source: Path) -> list[list[str | int]]:
    """What a cache of ``source`` is known by."""
    paths = [source, *(path for path in (source / folder for folder in FOLDERS) if path.is_dir())]
    return [[path.name, (status := path.stat()).st_size, status.st_mtime_ns] for path in paths]


def _read_cache(path: Path, *, stamp: Sequence[Sequence[str | int]]) -> list[str] | None:
    """The texts, or None if there is no sound cache with this stamp."""
    try:
        cached: Mapping = json.loads(path.read_bytes())
        texts = cached["texts"]
        sound = cached["stamp"] == stamp and len(texts) == EACH * len(FOLDERS) and all(map(str.strip, texts))
        return texts if sound else None
    except Exception:  # damage shows in many ways, and the cache can always be made again
        return None


def _write_cache(path: Path, texts: Sequence[str], *, stamp: Sequence[Sequence[str | int]]) -> None:
    """Write the cache in one step; without leave to write, do nothing."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as unfinished:
            unfinished.write_text(json.dumps({"stamp": stamp, "texts": list(texts)}))
