"""What the steps of an epoch have told: read from the device when it is asked for, not before."""

import torch

from probattn.inference.distributed.collectives import averaged
from probattn.inference.training.run_log import RunLog
from probattn.inference.training.step import Outcome


class EpochLog:
    """Adds up the losses of an epoch, and keeps those that are logged until they are written: means over processes.

    Args:
        log: gets a record of the first step and of every nth.
        epoch: its number, from 1.
        every: n.
    """

    def __init__(self, log: RunLog, *, epoch: int, every: int) -> None:
        self.log, self.epoch, self.every = log, epoch, every
        self.total: torch.Tensor | float = 0.0
        self.examples = 0
        self.waiting: list[tuple[int, float, tuple[str, ...], torch.Tensor]] = []

    def add(self, outcome: Outcome, *, step: int, lr: float, examples: int) -> None:
        """Takes in a step, from 1, of so many examples; what it told may change from here on."""
        self.total, self.examples = self.total + outcome.loss.double() * examples, self.examples + examples
        if step == 1 or step % self.every == 0:
            values = torch.stack([outcome.loss, *outcome.terms.values()])
            self.waiting.append((step, lr, ("loss", *outcome.terms), values))

    def write(self) -> None:
        """Logs what waits for it."""
        for step, lr, names, values in self.waiting:
            numbers = averaged(dict(zip(names, values.tolist(), strict=True)))
            self.log.write("step", step, epoch=self.epoch, loss=numbers.pop("loss"), lr=lr, **numbers)
        self.waiting.clear()

    def mean(self) -> float:
        """The mean loss, in nats an example."""
        return averaged({"loss": float(self.total) / self.examples})["loss"]
