"""Base class of loaders of batches from tensors on the device."""

import torch
from torch import Tensor


class BatchLoader:
    """Base of loaders that hold their data: size of the batches, order, and generator.

    Args:
        num_data: number of examples.
        batch_size: examples per batch; the last batch may be smaller.
        shuffle: draw a new order in each epoch.
        generator: CPU generator, the only source of randomness; default: a new one with torch's fixed default seed.

    Attributes:
        num_data, batch_size, shuffle: as given.
        generator: as given; save and restore its state to resume.
        order: positions in the data of the examples of an epoch that is not shuffled ``(num_data,)``; None if that is
            the data's own order.

    Raises:
        ValueError: ``batch_size`` is below 1, or ``generator`` is not on the CPU.
    """

    order: Tensor | None = None

    def __init__(self, num_data: int, *, batch_size: int, shuffle: bool, generator: torch.Generator | None) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.generator = torch.Generator() if generator is None else generator
        if self.generator.device.type != "cpu":
            raise ValueError(f"generator must be a CPU generator, got one on {self.generator.device}")
        self.num_data, self.batch_size, self.shuffle = num_data, batch_size, shuffle

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return -(-self.num_data // self.batch_size)
