"""One eager training step: loss, gradient, gradient clipping, Adam."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from probattn.functional.errors import NumericalError
from probattn.handlers import exclusive
from probattn.inference.natural_gradient import NaturalGradientDescent
from probattn.inference.non_finite import NonFiniteError, find_non_finite, first_line, refuses_nan, root_error
from probattn.inference.training.objective import Objective, StepCoefficients
from probattn.inference.training.parameter_groups import set_lr


class Outcome(NamedTuple):
    """Loss of a step in nats per example and the terms that sum to it, on the device and detached."""

    loss: Tensor
    terms: dict[str, Tensor]


class Step:
    """Training step that raises an error at once, with the source of a NaN or Inf.

    Args:
        objective: loss of a batch.
        optimizer: of all parameters, except those that ``natural`` updates.
        natural: natural-gradient steps of the guide's Gaussian modules, or None.
        backward: function that computes the gradient of a loss.
        clip_norm: maximum norm of the gradient of ``optimizer``'s parameters, or None.
        parts: model and guide by name, for error messages.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        *,
        backward: Callable[[Tensor], None],
        clip_norm: float | None,
        natural: NaturalGradientDescent | None = None,
        parts: Mapping[str, nn.Module],
    ) -> None:
        self.objective, self.optimizer, self.backward = objective, optimizer, backward
        self.optimizers = (optimizer,) if natural is None else (optimizer, natural)
        self.clip_norm, self.parts = clip_norm, dict(parts)

    def __call__(self, batch: tuple, coefficients: StepCoefficients) -> Outcome:
        """Update the parameters on one batch, ``(x, y)`` or ``(x, y, mask)``.

        Raises:
            NonFiniteError: a NaN or Inf; names its source.
        """
        set_lr(self.optimizers, coefficients.lr)
        loss = self._loss(batch, coefficients)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.backward(loss)
        if self.clip_norm is not None and not clip_gradients(self.optimizer, self.clip_norm).isfinite():
            raise NonFiniteError(f"NaN or Inf in {self._find_non_finite_gradient()}")
        with exclusive():  # other threads predict with the weights before or after it
            for optimizer in self.optimizers:
                optimizer.step()
        return Outcome(loss.detach(), self.objective.terms())

    def refuse_non_finite(self, batch: tuple, symptom: str) -> None:
        """Raise an error if the batch, a parameter or a site of the last loss is NaN or Inf.

        Raises:
            NonFiniteError: names the source and the symptom.
        """
        source = find_non_finite(batch, self.parts, self.objective.elbo.traces)
        if source is not None:
            raise NonFiniteError(f"NaN or Inf in {source} ({symptom})")

    def _loss(self, batch: tuple, coefficients: StepCoefficients) -> Tensor:
        try:
            loss = self.objective(batch, coefficients)
        except (ValueError, RuntimeError, NumericalError) as error:
            symptom = first_line(error)
            self.refuse_non_finite(batch, symptom)
            if isinstance(error, NumericalError):
                raise NonFiniteError(str(error)) from error
            if refuses_nan(error):
                raise NonFiniteError(f"NaN or Inf; lower lr ({symptom})") from error
            raise root_error(error) from None
        if not math.isfinite(loss.item()):
            self.refuse_non_finite(batch, "the loss is not finite")
            raise NonFiniteError(f"the loss is {loss.item()}; lower lr")
        return loss

    def _find_non_finite_gradient(self) -> str:
        for part, module in self.parts.items():
            for name, parameter in module.named_parameters():
                if parameter.grad is not None and not parameter.grad.isfinite().all():
                    return f"the gradient of {name} of the {part}"
        return "the gradient's norm"


def clip_gradients(optimizer: torch.optim.Optimizer, clip_norm: float) -> Tensor:
    """Scale all gradients down to a total norm of ``clip_norm`` if theirs is larger and finite; return theirs."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in parameters])
    nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm.where(norm.isfinite(), 0.0))
    return norm
