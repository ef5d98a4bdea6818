"""CoLA, the Corpus of Linguistic Acceptability (Warstadt et al. 2019), from the corpus's own files."""

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import torch

from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.text.labelled_texts import Texts, decode

CLASSES = ("unacceptable", "acceptable")
"""Names of the labels 0 and 1."""

LINES = {"in_domain_train": 8_551, "in_domain_dev": 527, "out_of_domain_dev": 516}
"""Number of sentences of each file of the corpus, in versions 1.0 and 1.1."""

_FOLDERS = ("cola_public/raw", "raw")
_ARCHIVES = ("cola_public.zip", "cola_public_1.1.zip")
_MAX_BYTES = 2**24
"""Maximal bytes of a file that is unpacked into memory; the corpus's largest has 429,000."""


def read(root: Path) -> tuple[Texts, Texts, Texts]:
    """Return the in-domain training, in-domain development and out-of-domain development part.

    They are read from the first place under ``root`` that has any of them: ``cola_public/raw/*.tsv``, ``raw/*.tsv``,
    or the corpus's own archive, ``cola_public.zip`` or ``cola_public_1.1.zip``, which is not unpacked to disk. A line
    has four tab-separated columns (source, label, the author's mark, sentence) without quoting.

    Raises:
        DatasetError: the files are missing or incomplete; or a line is not UTF-8, has another number of columns, a
            label other than 0 and 1 or an empty sentence: the file and the line are named.
    """
    found = next(_places(root), None)
    if found is None:
        places = (*(str(root.absolute() / folder) for folder in _FOLDERS), *(f"inside {name}" for name in _ARCHIVES))
        raise DatasetError(
            f"CoLA is not in {root.absolute()}. Looked for {', '.join(f'{part}.tsv' for part in LINES)} in "
            f"{', '.join(places)}. {_ADVICE}"
        )
    place, files = found
    missing = [f"{part}.tsv" for part in LINES if part not in files]
    if missing:
        raise DatasetError(f"CoLA in {place} is incomplete: {', '.join(missing)} missing. {_ADVICE}")
    train, dev, out_of_domain = (
        _parse(files[part], file=f"{place}/{part}.tsv", expected=expected) for part, expected in LINES.items()
    )
    return train, dev, out_of_domain


_ADVICE = (
    "Put cola_public_1.1.zip from https://nyu-mll.github.io/CoLA there, or give the folder that holds the corpus with "
    "--data or the environment variable PROBATTN_DATA."
)


def _places(root: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield each place that has a file of the corpus: its name, and the content of the files that it has."""
    for folder in (root / name for name in _FOLDERS):
        files = {part: path.read_bytes() for part in LINES if (path := folder / f"{part}.tsv").is_file()}
        if files:
            yield str(folder.absolute()), files
    for archive in (root / name for name in _ARCHIVES):
        if archive.is_file():
            yield str(archive.absolute()), _unzip(archive)


def _unzip(archive: Path) -> dict[str, bytes]:
    """Return the content of the three files in a folder ``raw`` at any depth of the archive."""
    files = {}
    try:
        with zipfile.ZipFile(archive) as content:
            for member in content.infolist():
                path = PurePosixPath(member.filename)
                if path.match("raw/*.tsv") and path.stem in LINES and path.parts[0] != "__MACOSX":
                    if member.file_size > _MAX_BYTES:
                        raise ValueError(f"{member.filename} would unpack to {member.file_size:,} bytes")
                    files[path.stem] = content.read(member)
    except (OSError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DatasetError(f"cannot read {archive.absolute()}: {error}. {_ADVICE}") from error
    return files


def _parse(content: bytes, *, file: str, expected: int) -> Texts:
    lines = content.removesuffix(b"\n").split(b"\n")  # not splitlines, which also splits at other characters
    pairs = [_parse_line(line, where=f"{file}, line {number}") for number, line in enumerate(lines, start=1)]
    if len(pairs) != expected:
        raise DatasetError(f"{file} has {len(pairs):,} lines, expected {expected:,}; put an intact copy there")
    texts, labels = zip(*pairs, strict=True)
    return Texts(texts, torch.tensor(labels))


def _parse_line(line: bytes, *, where: str) -> tuple[str, int]:
    """Return sentence and label."""
    text = decode(line, where=where)
    columns = text.split("\t")
    if len(columns) != 4:
        found = text if len(text) <= 60 else text[:60] + "…"
        raise DatasetError(
            f"{where} has {len(columns)} tab-separated columns, expected 4 (source, label, mark, sentence): "
            f"{found!r}; put an intact copy there"
        )
    _, label, _, sentence = columns
    if label not in ("0", "1"):
        raise DatasetError(f"{where} has the label {label!r}, expected 0 or 1; put an intact copy there")
    if not sentence.strip():
        raise DatasetError(f"{where} has an empty sentence; put an intact copy there")
    return sentence.strip(), int(label)
