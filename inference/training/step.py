"""One step of SVI: loss, gradient, clipping, Adam."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from probattn.functional.errors import NumericalError
from probattn.inference.non_finite import NonFiniteError, find_non_finite, first_line, refuses_nan
from probattn.inference.training.objective import Objective, StepCoefficients


class Outcome(NamedTuple):
    """What a step tells: its loss in nats an example and the terms that sum to it, on the device, without gradient."""

    loss: Tensor
    terms: dict[str, Tensor]


class Step:
    """A step in which everything that fails is an error at once, and is named.

    Args:
        objective: the loss.
        optimizer: of all parameters.
        backward: computes the gradient of a loss.
        clip_norm: largest norm of the gradient, or None.
        parts: model and guide, by name.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        *,
        backward: Callable[[Tensor], None],
        clip_norm: float | None,
        parts: Mapping[str, nn.Module],
    ) -> None:
        self.objective, self.optimizer, self.backward = objective, optimizer, backward
        self.clip_norm, self.parts = clip_norm, dict(parts)

    def __call__(self, batch: tuple, weights: StepCoefficients) -> Outcome:
        """Changes the weights by one batch, ``(x, y)`` or ``(x, y, mask)``.

        Raises:
            NonFiniteError: a NaN or Inf, named.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = weights.lr
        loss = self._loss(batch, weights)
        self.optimizer.zero_grad()
        self.backward(loss)
        if self.clip_norm is not None and not clip(self.optimizer, self.clip_norm).isfinite():
            raise NonFiniteError(f"NaN or Inf in {self._broken_gradient()}")
        self.optimizer.step()
        return Outcome(loss.detach(), self.objective.terms())

    def refuse_non_finite(self, batch: tuple, symptom: str) -> None:
        """Names what is NaN or Inf in a batch, the parameters or the sites of the last loss, if anything is.

        Raises:
            NonFiniteError: naming it.
        """
        source = find_non_finite(batch, self.parts, self.objective.elbo.traces)
        if source is not None:
            raise NonFiniteError(f"NaN or Inf in {source} ({symptom})")

    def _loss(self, batch: tuple, weights: StepCoefficients) -> Tensor:
        try:
            loss = self.objective(batch, weights)
        except (ValueError, RuntimeError, NumericalError) as error:
            symptom = first_line(error)
            self.refuse_non_finite(batch, symptom)
            if isinstance(error, NumericalError):
                raise NonFiniteError(str(error)) from error
            if refuses_nan(error):
                raise NonFiniteError(f"NaN or Inf; lower lr ({symptom})") from error
            raise
        if not math.isfinite(loss.item()):
            self.refuse_non_finite(batch, "the loss is not finite")
            raise NonFiniteError(f"the loss is {loss.item()}; lower lr")
        return loss

    def _broken_gradient(self) -> str:
        for part, module in self.parts.items():
            for name, parameter in module.named_parameters():
                if parameter.grad is not None and not parameter.grad.isfinite().all():
                    return f"the gradient of {name} of the {part}"
        return "the gradient's norm"


def clip(optimizer: torch.optim.Optimizer, clip_norm: float) -> Tensor:
    """Scales all gradients down to a norm, unless theirs is smaller or not finite, and returns theirs."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in parameters])
    nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm.where(norm.isfinite(), 0.0))
    return norm
