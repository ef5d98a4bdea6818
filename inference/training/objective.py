"""Loss of a training step: −ELBO/N of a batch, under the effect handlers that the options select."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from probattn.draws import draws
from probattn.inference.batches import unpack_batch
from probattn.inference.distributed import random_state
from probattn.inference.elbo import ELBOS, ELBOLoss
from probattn.inference.prediction.vectorization import broadcasts
from probattn.inference.training.compile_blocks import compile_blocks
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.schedule import annealed, interpolate
from probattn.programs import attribute
from probattn.weights import alpha, kl_weight

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class StepCoefficients(NamedTuple):
    """Coefficients that change from step to step.

    Args:
        kl, local_kl: KL weights of global and of local sites.
        alpha: weight of the CGP layers' regulariser.
    """

    kl: float = 1.0
    local_kl: float = 1.0
    alpha: float = 1.0

    @classmethod
    def at(cls, step: int, *, options: TrainOptions, steps_per_epoch: int, num_data: int) -> "StepCoefficients":
        """Return the coefficients of a step, counted from 0, for ``num_data`` training examples."""
        steps, anneal = options.epochs * steps_per_epoch, round(options.kl_anneal_epochs * steps_per_epoch)
        return cls(
            annealed(options.kl_weight_of(num_data), step=step, steps=anneal),
            annealed(options.local_kl_weight, step=step, steps=anneal),
            interpolate(options.alpha_start, options.alpha_end, step=step, steps=steps),
        )


class Objective:
    """Training loss −ELBO/N of a batch.

    Args:
        module: ``loss``, as set up for training on a device or several.
        loss: −ELBO of a model and its guide, which has the terms of its last value.
        options: options of the run.
        num_data: N, the number of training examples.
        vectorize: if True, the samples of a step are an additional dimension; if False, each particle of the ELBO is
            one sample shared by the batch.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: ELBOLoss,
        *,
        options: TrainOptions,
        num_data: int,
        vectorize: bool = True,
    ) -> None:
        self.module, self.loss, self.options, self.num_data = module, loss, options, num_data
        self.vectorize = vectorize
        self.scale = 1 / num_data

    def __call__(self, batch: tuple, coefficients: StepCoefficients, loss_weight: float = 1.0) -> Tensor:
        """Return the loss of ``(x, y)`` or ``(x, y, mask)`` in nats per example.

        Args:
            batch: the batch.
            coefficients: of the step.
            loss_weight: factor of the whole loss, for the rows of a larger batch that this one holds.
        """
        with self._handlers(coefficients, batch[0].device.type):
            self.scale = loss_weight / self.num_data
            return self.module(*batch) * self.scale

    def terms(self) -> dict[str, Tensor]:
        """Return the terms of the last loss, which sum to it, detached."""
        return {name: value * self.scale for name, value in self.loss.terms().items()}

    @contextmanager
    def _handlers(self, coefficients: StepCoefficients, device_type: str) -> Iterator[None]:
        with ExitStack() as stack:
            if (coefficients.kl, coefficients.local_kl) != (1, 1):
                stack.enter_context(kl_weight(coefficients.kl, local=coefficients.local_kl))
            if coefficients.alpha != 1:
                stack.enter_context(alpha(coefficients.alpha))
            if self.vectorize and self.options.samples_per == "example":
                stack.enter_context(draws("example"))
            if self.vectorize and self.options.num_particles > 1:
                stack.enter_context(draws(self.options.num_particles))
            if self.options.precision == "bf16-mixed":  # not Fabric's own, which would also round the labels
                stack.enter_context(torch.autocast(device_type, torch.bfloat16))
            yield


def make_objective(
    model: nn.Module, guide: nn.Module, *, options: TrainOptions, fabric: "Fabric", train: Iterable
) -> Objective:
    """Put model and guide on their device and return their loss.

    Args:
        model, guide: materialised modules.
        options: options of the run.
        fabric: has the device, and connects the processes of torchrun.
        train: training batches, of which the first tells whether the model broadcasts over samples.
    """
    vectorize = options.vectorize
    if vectorize is None:
        vectorize = broadcasts(model, guide, lambda: fabric.to_device(_first_batch(train)))
    elbo = ELBOS[options.elbo](num_particles=1 if vectorize else options.num_particles)
    if options.compile:
        compile_blocks(model)
    loss = ELBOLoss(model, guide, elbo)
    return Objective(
        fabric.setup_module(loss), loss, options=options, num_data=attribute(model, "num_data"), vectorize=vectorize
    )


def _first_batch(loader: Iterable) -> tuple:
    """Return the first batch of a loader and restore its random state."""
    with random_state.preserved(loader):
        return unpack_batch(next(iter(loader))).arguments()
