"""One training step: the loss −ELBO/N of its batches, gradients, clipping, update."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from probattn import draws
from probattn.functional import errors
from probattn.inference.distributed import RankBatch, world
from probattn.inference.non_finite import (
    NonFiniteError,
    find_non_finite,
    first_line,
    in_gradients,
)
from probattn.inference.objective.elbo import ELBOS, ELBOLoss
from probattn.inference.objective.num_data import attribute
from probattn.inference.prediction.latents import broadcasts
from probattn.inference.prediction.mixture import observation_checks
from probattn.inference.random_states import set_torch_states, torch_states
from probattn.inference.training.device import compile_blocks
from probattn.inference.training.optimizers import Optimizers
from probattn.inference.training.options import TrainOptions
from probattn.pyro_internals import is_validated, without_validation
from probattn.threads import one_thread_at_a_time
from probattn.weights import alpha, kl_weight

if TYPE_CHECKING:
    from lightning_fabric import Fabric


FAILURES = (ArithmeticError, IndexError, RuntimeError, ValueError)
"""Errors of a step whose source may be a NaN or Inf."""
Context = Callable[[], AbstractContextManager[Sequence[Tensor] | None]]
"""Context in which a batch runs; gives what its layers have found to fail, if they do not raise."""


class StepCoefficients(NamedTuple):
    """Coefficients that change from step to step.

    Args:
        kl, local_kl: KL weights of global and of local sites.
        alpha: weight of the CGP layers' regulariser.
    """

    kl: float
    local_kl: float
    alpha: float

    @classmethod
    def at(
        cls, step: int, *, options: TrainOptions, steps_per_epoch: int, num_data: int
    ) -> "StepCoefficients":
        """Return the coefficients of a step, counted from 0, for ``num_data`` training examples."""
        anneal = round(options.kl_anneal_epochs * steps_per_epoch)
        share = min(1.0, step / anneal) if anneal else 1.0
        progress = step / max(options.epochs * steps_per_epoch - 1, 1)
        return cls(
            kl=share * options.kl_weight_of(num_data),
            local_kl=share * options.local_kl_weight,
            alpha=options.alpha_start + (options.alpha_end - options.alpha_start) * progress,
        )


@contextmanager
def _deferred() -> Iterator[Sequence[Tensor]]:
    """Leave all checks to one read at the end."""
    with without_validation(), errors.deferred() as failures:
        yield failures


class Outcome(NamedTuple):
    """Loss of a step in nats per example and the terms that sum to it, on the device and
    detached."""

    loss: Tensor
    terms: dict[str, Tensor]


class Objective:
    """Training loss −ELBO/N of a batch, under the handlers that the options select.

    Args:
        model, guide: materialised modules on their device.
        options: options of the run.
        first_batch: returns a batch on that device, which shows whether a model of the user's
            broadcasts over samples.
        fabric: prepares the loss for a device or several; None for a loss that is prepared
            elsewhere.

    Attributes:
        module: ``loss`` as set up by Fabric.
        loss: −ELBO of model and guide, which has the terms of its last value.
        vectorize: True if the samples of a step are an additional dimension. False if each particle
            of the ELBO is one sample shared by the batch.
        num_data: number of training examples.
    """

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        *,
        options: TrainOptions,
        first_batch: Callable[[], tuple],
        fabric: "Fabric | None" = None,
    ) -> None:
        self.options = options
        self.fabric = fabric
        self.num_data = attribute(model, "num_data")
        self.vectorize = options.vectorize
        if self.vectorize is None:
            self.vectorize = broadcasts(model, guide, first_batch)
        if options.compile:
            compile_blocks(model)
        elbo = ELBOS[options.elbo](num_particles=1 if self.vectorize else options.num_particles)
        self.loss = ELBOLoss(model, guide, elbo)
        self.module: Any = self.loss  # or Fabric's, of a private class
        if fabric is not None:
            if world().size > 1:
                # PyTorch warns on each rank unless it finds a parameter that a step does not use,
                # which it is told to look for.
                self.loss.unused = nn.Parameter(torch.zeros(()))
            self.module = fabric.setup_module(self.loss)
        # Of a batch: of the first, and of all others.
        self._contexts: list[Context] = [nullcontext]
        self._later_contexts: list[Context] = [without_validation]
        # A compiled block has no list of failures, and all ranks run the same number of times.
        if not options.compile and world().size == 1:
            self._later_contexts.insert(0, _deferred)

    @one_thread_at_a_time
    def __call__(self, batch: tuple[Tensor, ...], coefficients: StepCoefficients) -> Tensor:
        """Return the loss of ``(x, y)`` or ``(x, y, mask)`` in nats per example.

        Pyro and PyTorch check each distribution by a read, which waits for the device. They do that
        in the first batch, and again in one that fails; all others are checked by one read. What
        the user has switched off stays off.

        Raises:
            NonFiniteError: a NaN or Inf; names its source.
            ValueError: labels outside their support, and what else the model raises.
        """
        contexts = self._contexts
        self._contexts = self._later_contexts
        is_checked = is_validated()
        states = torch_states()
        for context in contexts:
            failure = None
            try:
                with context() as failures:
                    loss = self._run(self.module, batch, coefficients)
                    if self._is_valid(loss, failures or (), observed=is_checked):
                        return loss
                    symptom = f"the loss is {loss.item()}"
            except FAILURES as error:
                failure = error
                symptom = first_line(error)
            set_torch_states(states)
            # Some layers need a look in each step, say for jitter.
            self._contexts = self._later_contexts = [without_validation]
        self._explain(batch, coefficients, symptom)
        if failure is not None:
            raise failure
        if not loss.isfinite():
            raise NonFiniteError(f"{symptom}; lower lr")
        return loss

    @torch.no_grad()
    def _explain(
        self, batch: tuple[Tensor, ...], coefficients: StepCoefficients, symptom: str
    ) -> None:
        """Raise an error that says what is wrong with a batch that has failed, if another run of it
        shows that: without checks, so that a NaN reaches the traces, and then with them.

        Raises:
            NonFiniteError: names the source.
            ValueError, NumericalError: as the checks, or the layers, raise.
        """
        states = torch_states()
        with suppress(*FAILURES), without_validation():
            self._run(self.loss, batch, coefficients)
        self.check_finite(batch, symptom)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a NaN, which the next check names
            for trace in self.loss.traces:
                trace.compute_log_prob()
        self.check_finite((), symptom)
        set_torch_states(states)
        self._run(self.loss, batch, coefficients)

    def _is_valid(self, loss: Tensor, failures: Sequence[Tensor] = (), *, observed: bool) -> bool:
        """Return True for a finite loss without failures, and with observed values that have a
        density; by one read."""
        valid = [loss.isfinite(), *map(torch.logical_not, failures)]
        if observed:
            valid += observation_checks(self.loss.traces[0])
        return bool(torch.stack(valid).all())

    def _run(
        self, module: Any, batch: tuple[Tensor, ...], coefficients: StepCoefficients
    ) -> Tensor:
        options = self.options
        with ExitStack() as stack:
            stack.enter_context(kl_weight(coefficients.kl, local=coefficients.local_kl))
            stack.enter_context(alpha(coefficients.alpha))
            if self.vectorize and options.samples_per == "example":
                stack.enter_context(draws("example"))
            if self.vectorize and options.num_particles > 1:
                stack.enter_context(draws(options.num_particles))
            if options.precision == "bf16-mixed":  # Fabric's own would also round the labels
                stack.enter_context(torch.autocast(batch[0].device.type, torch.bfloat16))
            return module(*batch) / self.num_data

    @one_thread_at_a_time
    def terms(self) -> dict[str, Tensor]:
        """Return the terms of the last loss, which sum to it, detached."""
        with without_validation():
            return {name: value / self.num_data for name, value in self.loss.terms().items()}

    def check_finite(self, batch: tuple, symptom: str) -> None:
        """Raise an error if the batch, a parameter, a site of the last loss or a gradient is NaN or
        Inf.

        Raises:
            NonFiniteError: names the source and the symptom.
        """
        modules = {"model": self.loss.model, "guide": self.loss.guide}
        source = find_non_finite(batch, modules, self.loss.traces) or in_gradients(self.loss)
        if source is not None:
            raise NonFiniteError(f"NaN or Inf in {source} ({symptom})")


def train_step(
    objective: Objective,
    optimizers: Optimizers,
    batches: Sequence[RankBatch],
    coefficients: StepCoefficients,
    *,
    with_terms: bool,
) -> Outcome:
    """Update parameters and learning rates once, by the gradient of some batches as if they were
    one.

    Args:
        objective: loss of a batch, whose Fabric averages gradients over ranks with the last batch.
        optimizers: of all parameters.
        batches: this rank's rows of each.
        coefficients: of the step.
        with_terms: compute the terms of the loss as well.

    Raises:
        NonFiniteError: a NaN or Inf; names its source.
    """
    fabric = cast("Fabric", objective.fabric)
    objective.loss.zero_grad()
    examples = sum(batch.batch_size for batch in batches)
    tensors: tuple[Tensor, ...] = ()
    total: Tensor | float = 0.0
    terms: dict[str, Tensor] = {}
    clip_norm = objective.options.clip_norm
    try:
        for number, batch in enumerate(batches, start=1):
            weight = batch.loss_weight * (batch.batch_size / examples)
            with fabric.no_backward_sync(objective.module, enabled=number < len(batches)):
                tensors = fabric.to_device(batch.tensors)
                loss = objective(tensors, coefficients) * weight
                fabric.backward(loss)
            total = total + loss.detach()
            if with_terms:
                for name, value in objective.terms().items():
                    terms[name] = terms.get(name, 0.0) + value * weight
        if clip_norm is not None:
            fabric.clip_gradients(objective.module, optimizers.optimizer, max_norm=clip_norm)
    except NonFiniteError:
        raise
    except FAILURES as error:
        objective.check_finite(tensors, first_line(error))
        raise
    optimizers.step()
    return Outcome(torch.as_tensor(total), terms)
