"""One training step: the loss −ELBO/N of its batches, gradients, clipping, update."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from probattn.draws import draws
from probattn.functional.errors import NumericalError
from probattn.inference.distributed import RankBatch
from probattn.inference.elbo import ELBOS, ELBOLoss
from probattn.inference.non_finite import NonFiniteError, find_non_finite, first_line, refuses_nan, root_error
from probattn.inference.prediction.latents import broadcasts
from probattn.inference.programs import attribute
from probattn.inference.training.device import compile_blocks
from probattn.inference.training.optimizers import Optimizers
from probattn.inference.training.options import TrainOptions
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
        share = min(1.0, step / anneal) if anneal else 1.0
        progress = step / max(steps - 1, 1)
        return cls(
            options.kl_weight_of(num_data) * share,
            options.local_kl_weight * share,
            options.alpha_start + (options.alpha_end - options.alpha_start) * progress,
        )


class Outcome(NamedTuple):
    """Loss of a step in nats per example and the terms that sum to it, on the device and detached."""

    loss: Tensor
    terms: dict[str, Tensor]


class Objective:
    """Training loss −ELBO/N of a batch, under the handlers that the options select.

    Args:
        module: ``loss``, as set up for training on a device or several.
        loss: −ELBO of a model and its guide, which has the terms of its last value.
        options: options of the run.
        vectorize: if True, the samples of a step are an additional dimension; if False, each particle of the ELBO is
            one sample shared by the batch.
    """

    def __init__(self, module: nn.Module, loss: ELBOLoss, *, options: TrainOptions, vectorize: bool) -> None:
        self.module, self.loss, self.options, self.vectorize = module, loss, options, vectorize
        self.num_data = attribute(loss.model, "num_data")

    def __call__(self, batch: Sequence[Tensor], coefficients: StepCoefficients) -> Tensor:
        """Return the loss of ``(x, y)`` or ``(x, y, mask)`` in nats per example."""
        with self._handlers(coefficients, batch[0].device.type):
            return self.module(*batch) / self.num_data

    def terms(self) -> dict[str, Tensor]:
        """Return the terms of the last loss, which sum to it, detached."""
        return {name: value / self.num_data for name, value in self.loss.terms().items()}

    @contextmanager
    def _handlers(self, coefficients: StepCoefficients, device_type: str) -> Iterator[None]:
        options = self.options
        with ExitStack() as stack:
            if (coefficients.kl, coefficients.local_kl) != (1, 1):
                stack.enter_context(kl_weight(coefficients.kl, local=coefficients.local_kl))
            if coefficients.alpha != 1:
                stack.enter_context(alpha(coefficients.alpha))
            if self.vectorize and options.samples_per == "example":
                stack.enter_context(draws("example"))
            if self.vectorize and options.num_particles > 1:
                stack.enter_context(draws(options.num_particles))
            if options.precision == "bf16-mixed":  # not Fabric's own, which would also round the labels
                stack.enter_context(torch.autocast(device_type, torch.bfloat16))
            yield


def make_objective(
    model: nn.Module,
    guide: nn.Module,
    *,
    options: TrainOptions,
    first_batch: Callable[[], tuple],
    setup: Callable[[nn.Module], nn.Module] | None = None,
) -> Objective:
    """Return the loss of a model and its guide.

    Args:
        model, guide: materialised modules on their device.
        options: options of the run.
        first_batch: returns a batch on that device, which shows whether a model of the user's broadcasts over samples.
        setup: prepares the loss for several processes.
    """
    vectorize = broadcasts(model, guide, first_batch) if options.vectorize is None else options.vectorize
    if options.compile:
        compile_blocks(model)
    loss = ELBOLoss(model, guide, ELBOS[options.elbo](num_particles=1 if vectorize else options.num_particles))
    return Objective(setup(loss) if setup else loss, loss, options=options, vectorize=vectorize)


def train_step(
    objective: Objective,
    optimizers: Optimizers,
    batches: Sequence[RankBatch],
    coefficients: StepCoefficients,
    *,
    fabric: "Fabric",
    with_terms: bool,
) -> Outcome:
    """Update the parameters once, by the gradient of some batches as if they were one.

    Args:
        objective: loss of a batch.
        optimizers: of all parameters.
        batches: this rank's rows of each.
        coefficients: of the step.
        fabric: computes gradients, and averages them over ranks with the last batch.
        with_terms: compute the terms of the loss as well.

    Raises:
        NonFiniteError: a NaN or Inf; names its source.
    """
    optimizers.zero_grad()
    examples = sum(batch.batch_size for batch in batches)
    total, terms = 0.0, {}
    for number, batch in enumerate(batches, start=1):
        weight = batch.loss_weight * (batch.batch_size / examples)
        with nullcontext() if number == len(batches) else fabric.no_backward_sync(objective.module):
            loss = _finite_loss(objective, fabric.to_device(batch.tensors), coefficients) * weight
            fabric.backward(loss)
        total = total + loss.detach()
        for name, value in objective.terms().items() if with_terms else ():
            terms[name] = terms.get(name, 0.0) + value * weight
    if objective.options.clip_norm is not None:
        _clip_gradients(objective, optimizers)
    optimizers.step()
    return Outcome(total, terms)


def check_finite(objective: Objective, batch: tuple, symptom: str) -> None:
    """Raise an error if the batch, a parameter or a site of the last loss is NaN or Inf.

    Raises:
        NonFiniteError: names the source and the symptom.
    """
    modules = {"model": objective.loss.model, "guide": objective.loss.guide}
    source = find_non_finite(batch, modules, objective.loss.traces)
    if source is not None:
        raise NonFiniteError(f"NaN or Inf in {source} ({symptom})")


def _finite_loss(objective: Objective, batch: tuple, coefficients: StepCoefficients) -> Tensor:
    try:
        loss = objective(batch, coefficients)
    except (ValueError, RuntimeError, NumericalError) as error:
        check_finite(objective, batch, first_line(error))
        if isinstance(error, NumericalError):
            raise NonFiniteError(str(error)) from error
        if refuses_nan(error):
            raise NonFiniteError(f"NaN or Inf; lower lr ({first_line(error)})") from error
        raise root_error(error) from None
    if not math.isfinite(loss.item()):
        check_finite(objective, batch, "the loss is not finite")
        raise NonFiniteError(f"the loss is {loss.item()}; lower lr")
    return loss


def _clip_gradients(objective: Objective, optimizers: Optimizers) -> None:
    """Scale gradients, but natural ones, down to a total norm of ``clip_norm`` if theirs is larger."""
    groups = optimizers.optimizer.param_groups
    parameters = [p for group in groups for p in group["params"] if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in parameters])
    if not norm.isfinite():
        named = objective.loss.named_parameters()
        broken = (name for name, p in named if p.grad is not None and not p.grad.isfinite().all())
        raise NonFiniteError(f"NaN or Inf in the gradient of {next(broken, 'some parameters, in sum')}")
    nn.utils.clip_grads_with_norm_(parameters, objective.options.clip_norm, norm)
