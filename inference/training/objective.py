"""Loss of a training step: −ELBO/N of a batch, under the effect handlers that the options select."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from probattn.handlers import alpha, draws, kl_weight
from probattn.inference.elbo import Trace_ELBO, TraceMeanField_ELBO
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.schedule import annealed, interpolate, learning_rate


class StepCoefficients(NamedTuple):
    """Coefficients that change from step to step, as numbers or as scalars on the device.

    Args:
        lr: learning rate.
        kl, local_kl: KL weights of global and of local sites.
        alpha: weight of the CGP layers' regulariser.
        loss_weight: factor of the whole loss, for the rows of a larger batch that this rank has.
    """

    lr: float | Tensor
    kl: float | Tensor = 1.0
    local_kl: float | Tensor = 1.0
    alpha: float | Tensor = 1.0
    loss_weight: float | Tensor = 1.0

    @classmethod
    def at(
        cls, step: int, *, options: TrainOptions, steps_per_epoch: int, num_data: int, loss_weight: float = 1.0
    ) -> "StepCoefficients":
        """Return the coefficients of a step, counted from 0, for ``num_data`` training examples."""
        steps, warmup = options.epochs * steps_per_epoch, round(options.warmup_epochs * steps_per_epoch)
        anneal = round(options.kl_anneal_epochs * steps_per_epoch)
        rates = {"lr": options.lr, "min_lr": options.min_lr}
        return cls(
            learning_rate(options.schedule, step=step, steps=steps, warmup=warmup, **rates),
            annealed(options.kl_weight_of(num_data), step=step, steps=anneal),
            annealed(options.local_kl_weight, step=step, steps=anneal),
            interpolate(options.alpha_start, options.alpha_end, step=step, steps=steps),
            loss_weight,
        )


class Objective:
    """Training loss −ELBO/N of a batch.

    Args:
        module: ELBO of a model and its guide, as set up for training.
        elbo: the same ELBO, which keeps the terms of its last value.
        options: options of the run.
        num_data: N, the number of training examples.
        vectorize: if True, the samples of a step are an additional dimension; if False, each particle of the ELBO is
            one sample shared by the batch.
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

    def __call__(self, batch: tuple, coefficients: StepCoefficients) -> Tensor:
        """Return the loss of ``(x, y)`` or ``(x, y, mask)`` in nats per example."""
        self.elbo.traces = ()
        with self._handlers(coefficients, batch[0].device.type):
            self.scale = coefficients.loss_weight / self.num_data
            return self.module(*batch) * self.scale

    def terms(self) -> dict[str, Tensor]:
        """Return the terms of the last loss, which sum to it, detached."""
        return {name: value * self.scale for name, value in self.elbo.term_tensors.items()}

    @contextmanager
    def _handlers(self, coefficients: StepCoefficients, device_type: str) -> Iterator[None]:
        with ExitStack() as stack:
            if not _are_one(coefficients.kl, coefficients.local_kl):
                stack.enter_context(kl_weight(coefficients.kl, local=coefficients.local_kl))
            if not _are_one(coefficients.alpha):
                stack.enter_context(alpha(coefficients.alpha))
            if self.vectorize and self.options.samples_per == "example":
                stack.enter_context(draws("example"))
            if self.vectorize and self.options.num_particles > 1:
                stack.enter_context(draws(self.options.num_particles))
            # Not Fabric's own precision, which would also round the labels.
            half = self.options.precision == "bf16-mixed"
            stack.enter_context(torch.autocast(device_type, torch.bfloat16, enabled=half))
            yield


def _are_one(*coefficients: float | Tensor) -> bool:
    return all(isinstance(each, float | int) and each == 1 for each in coefficients)
