"""Labelled texts, and decoding of their files."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from probattn.experiments.data.digest import digest
from probattn.experiments.data.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Texts:
    """Labelled texts: ``texts`` n strings, ``labels`` int64 (n,), not negative.

    Raises:
        ValueError: if the labels have another shape or dtype or are negative, or a text has nothing but white space;
            its position is named.
    """

    texts: tuple[str, ...]
    labels: Tensor

    def __post_init__(self) -> None:
        if self.labels.dtype != torch.int64 or self.labels.shape != (len(self.texts),):
            found = f"{self.labels.dtype} {tuple(self.labels.shape)}"
            raise ValueError(f"labels must be int64 ({len(self.texts)},), one per text, got {found}")
        negative = (self.labels < 0).nonzero()
        if len(negative):
            position = negative[0].item()
            raise ValueError(f"labels must not be negative, got {self.labels[position]} at position {position}")
        for position, text in enumerate(self.texts):
            if not text or text.isspace():
                raise ValueError(f"the text at position {position} is empty: {text!r}; remove it with its label")

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def digest(self) -> str:
        """Digest of the texts and labels, computed once."""
        return digest((self.texts, self.labels))

    def select(self, indices: Tensor) -> Self:
        """Return the texts at ``indices``, int64 (m,), in that order."""
        return type(self)(tuple(self.texts[index] for index in indices.tolist()), self.labels[indices])


def decode(content: bytes, *, where: str) -> str:
    """Decode UTF-8 bytes.

    Raises:
        DatasetError: they are not UTF-8; names their origin ``where`` and the first wrong byte.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{where} is not UTF-8: byte 0x{content[error.start]:02x} at position {error.start}; "
            "put an intact copy there"
        ) from error
