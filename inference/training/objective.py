"""The loss of a training step: −ELBO/N of a batch, under the handlers and with the weights that the options ask for."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from probattn.handlers import alpha, draws, kl_weight
from probattn.inference.elbo import Trace_ELBO, TraceMeanField_ELBO
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.schedule import annealed, between, learning_rate


class StepCoefficients(NamedTuple):
    """What changes from step to step: numbers, or scalars on the device.

    Args:
        lr: learning rate.
        kl, local_kl: weights of the KL of global and of local sites.
        alpha: of the CGP layers' regulariser.
        share: of all of it, where the batch is one process's part of a larger one.
    """

    lr: float | Tensor
    kl: float | Tensor = 1.0
    local_kl: float | Tensor = 1.0
    alpha: float | Tensor = 1.0
    share: float | Tensor = 1.0

    @classmethod
    def at(cls, step: int, *, options: TrainOptions, per_epoch: int, share: float = 1.0) -> "StepCoefficients":
        """Those of a step, from 0, of a run with so many steps an epoch."""
        steps, warmup = options.epochs * per_epoch, round(options.warmup_epochs * per_epoch)
        anneal = round(options.kl_anneal_epochs * per_epoch)
        rates = {"lr": options.lr, "min_lr": options.min_lr}
        return cls(
            learning_rate(options.schedule, step=step, steps=steps, warmup=warmup, **rates),
            annealed(options.kl_weight, step=step, steps=anneal),
            annealed(options.local_kl_weight, step=step, steps=anneal),
            between(options.alpha_start, options.alpha_end, step=step, steps=steps),
            share,
        )


class Objective:
    """−ELBO/N of a batch.

    Args:
        module: an ELBO of a model and its guide, as it is called in training.
        elbo: that ELBO, which knows the terms of its last value.
        options: of the run.
        num_data: N.
        vectorize: draw as the options say, with a dimension of draws; False draws once for the whole batch, as often as
            the ELBO has particles.
    """

    def __init__(
        self,
        module: nn.Module,
        elbo: Trace_ELBO | TraceMeanField_ELBO,
        *,
        options: TrainOptions,
        num_data: int,
        vectorize: bool = True,
    ) -> None:
        self.module, self.elbo, self.options, self.num_data = module, elbo, options, num_data
        self.vectorize = vectorize
        self.scale: float | Tensor = 1 / num_data

    def __call__(self, batch: tuple, weights: StepCoefficients) -> Tensor:
        """The loss of ``(x, y)`` or ``(x, y, mask)``, in nats an example."""
        self.elbo.traces = ()
        with self._handlers(weights, batch[0].device.type):
            self.scale = weights.share / self.num_data
            return self.module(*batch) * self.scale

    def terms(self) -> dict[str, Tensor]:
        """The terms of the last loss, which sum to it, without gradient."""
        return {name: value * self.scale for name, value in self.elbo.parts.items()}

    @contextmanager
    def _handlers(self, weights: StepCoefficients, device_type: str) -> Iterator[None]:
        with ExitStack() as stack:
            if not _are_one(weights.kl, weights.local_kl):
                stack.enter_context(kl_weight(weights.kl, local=weights.local_kl))
            if not _are_one(weights.alpha):
                stack.enter_context(alpha(weights.alpha))
            if self.vectorize and self.options.samples_per == "example":
                stack.enter_context(draws("example"))
            if self.vectorize and self.options.num_particles > 1:
                stack.enter_context(draws(self.options.num_particles))
            # Not Fabric's own precision: it would round the labels as well.
            half = self.options.precision == "bf16-mixed"
            stack.enter_context(torch.autocast(device_type, torch.bfloat16, enabled=half))
            yield


def _are_one(*weights: float | Tensor) -> bool:
    return all(isinstance(weight, float | int) and weight == 1 for weight in weights)
