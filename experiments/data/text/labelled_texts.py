"""Labelled texts, and decoding of their files."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from probattn.experiments.data.dataset import Part, digest
from probattn.experiments.data.errors import DatasetError
from probattn.experiments.data.own.examples import normal_name


@dataclass(frozen=True, eq=False)
class Texts(Part):
    """Labelled texts: ``texts`` n strings that are not empty, ``labels`` int64 (n,), not negative.

    Raises:
        ValueError: the labels have another shape or dtype, or a text has nothing but white space.
    """

    texts: tuple[str, ...]
    labels: Tensor

    def __post_init__(self) -> None:
        if self.labels.dtype != torch.int64 or self.labels.shape != (len(self.texts),):
            shape = f"{self.labels.dtype} {tuple(self.labels.shape)}"
            raise ValueError(
                f"labels must be int64 ({len(self.texts)},), one per text, got {shape}"
            )
        if not all(map(str.strip, self.texts)):
            raise ValueError("a text is empty; remove it with its label")

    @cached_property
    def keys(self) -> list[str]:
        """Digest of each text as :func:`comparable` one."""
        return [digest(comparable(text)) for text in self.texts]


def comparable(text: str) -> str:
    """Return what equal texts share: they may differ in case, white space and the form of
    apostrophes."""
    return normal_name(text).casefold().replace("\u2019", "'")


def well_formed(texts: Iterable[str]) -> list[str]:
    """Return texts in which ``\\ufffd`` replaces each half of a surrogate pair, which no tokenizer
    takes."""
    return [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]


def decode(content: bytes, *, where: str) -> str:
    """Decode UTF-8 bytes; halves of surrogate pairs are decoded too.

    Raises:
        DatasetError: they are not UTF-8; names their origin ``where`` and the line.
    """
    try:
        return content.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise DatasetError(
            f"{where}, line {line} is not UTF-8: byte 0x{byte:02x}; save it as UTF-8"
        ) from error
