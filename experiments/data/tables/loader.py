"""Loader of batches of rows from tensors on the device."""

from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor

from probattn.experiments.data.batch_loader import BatchLoader


class TableLoader(BatchLoader):
    """Loader of batches: ``x`` float32 (batch, columns) and ``y`` (batch, ...).

    ``generator`` is the only source of randomness: its state at an epoch's first batch determines that epoch.

    Args:
        features: ``(n, columns)``.
        labels: ``(n, ...)``.
        batch_size: rows per batch; the last batch may be smaller.
        shuffle: draw a new order in each epoch.
        generator: CPU generator; default: a new one with torch's fixed default seed.
        device: device of the data and the batches.

    Attributes:
        generator: as given; save and restore its state to resume.
        num_data: number of rows.
        batch_size, device: as given.
    """

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        *,
        batch_size: int,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(len(features), batch_size=batch_size, shuffle=shuffle, generator=generator)
        if not len(features) or len(labels) != len(features):
            raise ValueError(f"need one label per row and a row at least, got {len(labels)} for {len(features)}")
        self._features, self._labels = features, labels
        self.to(device)

    def to(self, device: torch.device | str) -> Self:
        """Move the data and all further batches to ``device``, in place; returns the loader."""
        self.device = torch.device(device)
        self._features, self._labels = self._features.to(self.device), self._labels.to(self.device)
        return self

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch."""
        order = torch.arange(self.num_data)
        if self.shuffle:
            order = torch.randperm(self.num_data, generator=self.generator)
        for indices in order.to(self.device, non_blocking=True).split(self.batch_size):
            yield self._features[indices], self._labels[indices]
