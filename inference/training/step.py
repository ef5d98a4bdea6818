"""One training step: loss, gradient, gradient clipping, optimisers."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from torch import Tensor, nn

from probattn.functional.errors import NumericalError
from probattn.inference.non_finite import NonFiniteError, find_non_finite, first_line, refuses_nan, root_error
from probattn.inference.training.objective import Objective, StepCoefficients
from probattn.inference.training.optimizers import Optimizers


class Outcome(NamedTuple):
    """Loss of a step in nats per example and the terms that sum to it, on the device and detached."""

    loss: Tensor
    terms: dict[str, Tensor]

    @classmethod
    def total(cls, parts: Iterable["Outcome"]) -> "Outcome":
        """Return the sum of the outcomes of a step's batches, whose losses are weighted by their sizes."""
        first, *others = parts
        loss, terms = first.loss, dict(first.terms)
        for part in others:
            loss = loss + part.loss
            for name, value in part.terms.items():
                terms[name] = terms[name] + value if name in terms else value
        return cls(loss, terms)


class Step:
    """Training step that raises an error at once, with the source of a NaN or Inf.

    Args:
        objective: loss of a batch.
        optimizers: of all parameters.
        backward: function that computes the gradient of a loss.
        no_sync: context manager in which gradients stay on their rank, for all batches of a step but its last.
        clip_norm: maximum norm of the gradient of the parameters without natural gradients, or None.
        parts: model and guide by name, for error messages.
    """

    def __init__(
        self,
        objective: Objective,
        optimizers: Optimizers,
        *,
        backward: Callable[[Tensor], None],
        no_sync: Callable[[], AbstractContextManager] = nullcontext,
        clip_norm: float | None,
        parts: Mapping[str, nn.Module],
    ) -> None:
        self.objective, self.optimizers, self.backward, self.no_sync = objective, optimizers, backward, no_sync
        self.clip_norm, self.parts = clip_norm, dict(parts)

    def __call__(
        self, batches: Sequence[tuple], coefficients: StepCoefficients, loss_weights: Sequence[float] = (1.0,)
    ) -> Outcome:
        """Update the parameters once, by the gradient of one batch or the sum of the gradients of several.

        Args:
            batches: each ``(x, y)`` or ``(x, y, mask)``.
            coefficients: of the step.
            loss_weights: factor of each batch's loss.

        Raises:
            NonFiniteError: a NaN or Inf; names its source.
        """
        self.optimizers.zero_grad()
        outcomes = []
        for number, (batch, weight) in enumerate(zip(batches, loss_weights, strict=True), start=1):
            with nullcontext() if number == len(batches) else self.no_sync():
                loss = self._loss(batch, coefficients, weight)
                self.backward(loss)
            outcomes.append(Outcome(loss.detach(), self.objective.terms()))
        if self.clip_norm is not None:
            self._clip_gradients()
        self.optimizers.step()
        return Outcome.total(outcomes)

    def refuse_non_finite(self, batch: tuple, symptom: str) -> None:
        """Raise an error if the batch, a parameter or a site of the last loss is NaN or Inf.

        Raises:
            NonFiniteError: names the source and the symptom.
        """
        source = find_non_finite(batch, self.parts, self.objective.loss.traces)
        if source is not None:
            raise NonFiniteError(f"NaN or Inf in {source} ({symptom})")

    def _loss(self, batch: tuple, coefficients: StepCoefficients, weight: float) -> Tensor:
        try:
            loss = self.objective(batch, coefficients, weight)
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

    def _clip_gradients(self) -> None:
        """Scale gradients down to a total norm of ``clip_norm`` if theirs is larger."""
        groups = self.optimizers.optimizer.param_groups
        parameters = [p for group in groups for p in group["params"] if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in parameters])
        if not norm.isfinite():
            raise NonFiniteError(f"NaN or Inf in {self._find_non_finite_gradient()}")
        nn.utils.clip_grads_with_norm_(parameters, self.clip_norm, norm)

    def _find_non_finite_gradient(self) -> str:
        for part, module in self.parts.items():
            for name, parameter in module.named_parameters():
                if parameter.grad is not None and not parameter.grad.isfinite().all():
                    return f"the gradient of {name} of the {part}"
        return "the gradient's norm"
