"""Gain of the ELBO by refitting a guide, on the same batches and draws before and after."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from probattn.guides import Guide
from probattn.inference.diagnostics.convergence_records import Refit
from probattn.inference.diagnostics.guide_gradients import objective
from probattn.inference.diagnostics.posterior_collapse import posterior_summary
from probattn.inference.elbo import ELBOLoss

WHOLE = ""
"""Key of the whole guide among its sites."""


class Measure:
    """−ELBO of the whole data set on fixed batches and draws, for several values of a guide's parameters."""

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        batches: Sequence[tuple],
        *,
        weights: tuple[float, float],
        passes: int,
        per_example: bool,
    ) -> None:
        self.model, self.guide, self.batches = model, guide, batches
        self.weights, self.passes, self.per_example = weights, passes, per_example
        self.seed = int(torch.randint(2**31, ()))
        sizes = torch.tensor([float(len(batch[0])) for batch in batches])
        self.shares = (sizes / sizes.mean()).repeat(passes)

    @torch.no_grad()
    def __call__(self, values: Mapping[str, Tensor]) -> tuple[Tensor, float | None]:
        """Return the losses of all passes and batches, and the unweighted KL."""
        _assign(self.guide, values)
        torch.manual_seed(self.seed)
        loss_of, losses = ELBOLoss(self.model, self.guide), []
        for batch in self.batches * self.passes:
            with objective(batch, self.weights, per_example=self.per_example):
                losses.append(loss_of(*batch))
        kl = None
        if isinstance(self.guide, Guide):
            kl = sum(row["kl"] for row in posterior_summary(self.model, self.guide))
        return torch.stack(losses).cpu().double(), kl

    def compare(self, base: tuple[Tensor, float | None], values: Mapping[str, Tensor]) -> Refit:
        """Return the gain of other values over ``base``."""
        losses, kl = self(values)
        gains = base[0] - losses
        error = gains.std().item() / len(gains) ** 0.5
        return Refit(gain=(self.shares * gains).mean().item(), error=error, kl_before=base[1], kl=kl)


def refit_gains(measure: Measure, refit: Callable[[], None]) -> dict[str, Refit]:
    """Refit a guide; return the effect for the whole guide, and for each site of this library's guides alone."""
    guide, before = measure.guide, parameter_values(measure.guide)
    base = measure(before)
    refit()
    after = parameter_values(guide)
    found = {WHOLE: measure.compare(base, after)}
    for site in guide.sites if isinstance(guide, Guide) else ():
        own = {name: value for name, value in after.items() if name.startswith(f"{site}.")}
        found[site] = found[WHOLE] if len(own) == len(after) else measure.compare(base, before | own)
    return found


def parameter_values(guide: nn.Module) -> dict[str, Tensor]:
    """Return copies of a guide's parameters."""
    return {name: parameter.detach().clone() for name, parameter in guide.named_parameters()}


@torch.no_grad()
def _assign(guide: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, parameter in guide.named_parameters():
        parameter.copy_(values[name])


@contextmanager
def restored(guide: nn.Module) -> Iterator[None]:
    """Context manager in which all parameters of a guide require gradients; restores them on exit."""
    state = [(each, each.requires_grad, each.grad) for each in guide.parameters()]
    values = parameter_values(guide)
    try:
        guide.requires_grad_(True)
        yield
    finally:
        if state:  # an AutoGuide that had not run yet is new
            _assign(guide, values)
        for each, flag, grad in state:
            each.requires_grad_(flag)
            each.grad = grad
