"""Labelled texts."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from probattn.experiments.data.images.images import DatasetError


@dataclass(frozen=True, eq=False)
class Texts:
    """Labelled texts: ``texts`` n strings, ``labels`` int64 (n,), not negative.

    :func:`probattn.experiments.data.images.images.split` takes them as it takes images.

    Raises:
        ValueError: labels of another shape or dtype, or negative; or a text with nothing but white space, by its
            position.
    """

    texts: tuple[str, ...]
    labels: Tensor

    def __post_init__(self) -> None:
        if self.labels.dtype != torch.int64 or self.labels.shape != (len(self.texts),):
            found = f"{self.labels.dtype} {tuple(self.labels.shape)}"
            raise ValueError(f"labels must be int64 ({len(self.texts)},), one a text, got {found}")
        negative = (self.labels < 0).nonzero()
        if len(negative):
            position = negative[0].item()
            raise ValueError(f"labels must not be negative, got {self.labels[position]} at position {position}")
        for position, text in enumerate(self.texts):
            if not text or text.isspace():
                raise ValueError(f"the text at position {position} is empty: {text!r}; remove it with its label")

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, indices: Tensor) -> Self:
        """The texts at ``indices``, int64 (m,), in that order."""
        return type(self)(tuple(self.texts[index] for index in indices.tolist()), self.labels[indices])


def decode(content: bytes, *, where: str) -> str:
    """The text of UTF-8 bytes.

    Raises:
        DatasetError: they are something else; names ``where`` they are from, and the first wrong byte.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{where} is not UTF-8: byte 0x{content[error.start]:02x} at position {error.start}; put a sound copy there"
        ) from error
