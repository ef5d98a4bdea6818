"""Losses of the steps of one epoch, read from the device only when they are written."""

import torch

from probattn.inference.distributed.collectives import average_over_ranks
from probattn.inference.training.run_log import RunLog
from probattn.inference.training.step import Outcome


class EpochLog:
    """Sums the losses of an epoch and buffers the steps to be logged; values are means over ranks.

    Args:
        log: receives a record of the first step and of every nth.
        epoch: number of the epoch, from 1.
        every: n.
    """

    def __init__(self, log: RunLog, *, epoch: int, every: int) -> None:
        self.log, self.epoch, self.every = log, epoch, every
        self.total: torch.Tensor | float = 0.0
        self.examples = 0
        self.buffer: list[tuple[int, float, tuple[str, ...], torch.Tensor]] = []

    def add(self, outcome: Outcome, *, step: int, lr: float, examples: int) -> None:
        """Add step number ``step``, from 1, on ``examples`` examples; the outcome may be overwritten afterwards."""
        self.total, self.examples = self.total + outcome.loss.double() * examples, self.examples + examples
        if step == 1 or step % self.every == 0:
            values = torch.stack([outcome.loss, *outcome.terms.values()])
            self.buffer.append((step, lr, ("loss", *outcome.terms), values))

    def write(self) -> None:
        """Write the buffered steps to the log."""
        for step, lr, names, values in self.buffer:
            numbers = average_over_ranks(dict(zip(names, values.tolist(), strict=True)))
            self.log.write("step", step, epoch=self.epoch, loss=numbers.pop("loss"), lr=lr, **numbers)
        self.buffer.clear()

    def mean(self) -> float:
        """Return the mean loss in nats per example."""
        return average_over_ranks({"loss": float(self.total) / self.examples})["loss"]
