"""Optimisers of a run, Adam or the user's and natural gradients, with their learning-rate schedulers."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from probattn.inference.natural_gradient import NaturalGradientDescent, check_gaussian, gaussian_modules
from probattn.inference.training.options import TrainOptions
from probattn.inference.training.parameter_groups import ParameterGroup, parameter_groups
from probattn.inference.training.warmup_decay import WarmupDecay

OptimizerFactory = Callable[[list[ParameterGroup]], Optimizer]
"""Function of parameter groups (``params``, ``lr``, ``weight_decay``) that returns an optimiser of them."""
SchedulerFactory = Callable[[Optimizer], LRScheduler]
"""Function of an optimiser that returns its learning-rate scheduler, which is stepped once per training step."""
_IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}
"""Settings of an optimiser that leave its updates as they are, up to rounding."""


class Optimizers:
    """Optimiser of a run, natural-gradient steps beside it, and a learning-rate scheduler of each.

    Args:
        optimizer: of all parameters, except those that ``natural`` updates.
        natural: natural-gradient steps of the guide's Gaussian modules, or None.
        scheduler: factory of the schedulers.

    Raises:
        TypeError: a scheduler or an optimiser that a training step cannot call.
    """

    def __init__(
        self, optimizer: Optimizer, natural: NaturalGradientDescent | None, scheduler: SchedulerFactory
    ) -> None:
        self.optimizer = _checked_optimizer(optimizer)
        self.all: tuple[Optimizer, ...] = (optimizer,) if natural is None else (optimizer, natural)
        self.schedulers = [_checked_scheduler(scheduler(each)) for each in self.all]
        self.recipe = self._recipe()

    def zero_grad(self) -> None:
        """Clear the gradients of all parameters."""
        for optimizer in self.all:
            optimizer.zero_grad()

    def step(self) -> None:
        """Update all parameters."""
        for optimizer in self.all:
            optimizer.step()

    def step_schedulers(self) -> None:
        """Set the learning rates of the next step."""
        for scheduler in self.schedulers:
            scheduler.step()

    def lr(self) -> float:
        """Return the learning rate of the next step, of the parameters whose rate has no factor."""
        groups = self.optimizer.param_groups
        highest = self.optimizer.defaults.get("lr")
        chosen = next((group for group in groups if group.get("initial_lr") == highest), groups[0])
        return float(chosen["lr"])

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimisers and schedulers, and the settings that they were built with."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "natural": [each.state_dict() for each in self.all[1:]],
            "schedulers": [each.state_dict() for each in self.schedulers],
            "recipe": self.recipe,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
        for optimizer, each in zip(self.all, [state["optimizer"], *state["natural"]], strict=True):
            optimizer.load_state_dict(each)
        for scheduler, each in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(each)

    def _recipe(self) -> dict[str, str]:
        """Return type and settings of each optimiser and scheduler as text, by which a resumed run is compared."""
        found = {}
        for number, (optimizer, scheduler) in enumerate(zip(self.all, self.schedulers, strict=True)):
            defaults = {name: value for name, value in optimizer.defaults.items() if name not in _IMPLEMENTATION}
            name = "optimizer" if number == 0 else "natural"
            found[name] = f"{type(optimizer).__name__}({_settings(defaults)})"
            own = {key: value for key, value in scheduler.state_dict().items() if key[0] != "_"}
            found[f"{name}'s scheduler"] = f"{type(scheduler).__name__}({_settings(own)})"
        return found


def make_optimizers(
    model: nn.Module,
    guide: nn.Module,
    *,
    options: TrainOptions,
    num_data: int,
    steps_per_epoch: int,
    optimizer: OptimizerFactory | None = None,
    scheduler: SchedulerFactory | None = None,
) -> Optimizers:
    """Return the optimisers of a run.

    Args:
        model, guide: materialised modules on their device.
        options: of the run.
        num_data: number of training examples.
        steps_per_epoch: number of training steps of an epoch.
        optimizer: factory of the optimiser; None is :func:`adam`.
        scheduler: factory of the schedulers; None is
            :class:`~probattn.inference.training.warmup_decay.WarmupDecay` of the options.

    Raises:
        TypeError: an optimiser or a scheduler that a training step cannot call.
        ValueError: a guide without natural gradients.
    """
    natural, scale = None, options.guide_lr_scale
    if options.guide_optimizer == "ngd":
        check_gaussian(guide)
        if gaussians := gaussian_modules(guide):
            lr = options.lr * options.guide_lr_scale
            natural = NaturalGradientDescent(gaussians, lr=lr, scale=num_data / options.kl_weight_of(num_data))
        scale = 1.0
    groups = parameter_groups(
        model,
        guide,
        lr=options.lr,
        weight_decay=options.weight_decay,
        lr_scale=options.lr_scale,
        guide_lr_scale=scale,
        without=() if natural is None else natural.parameters(),
    )
    build = optimizer or partial(adam, options=options)
    decay = partial(WarmupDecay, options=options, steps_per_epoch=steps_per_epoch)
    return Optimizers(build(groups), natural, scheduler or decay)


def adam(groups: list[ParameterGroup], *, options: TrainOptions) -> torch.optim.Adam:
    """Return AdamW, or Adam with an L2 penalty without ``options.decoupled_weight_decay``, in the fused form."""
    decoupled = options.decoupled_weight_decay
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    return kind(groups, lr=options.lr, weight_decay=options.weight_decay, fused=True)


def _checked_optimizer(optimizer: Any) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer must be a function of parameter groups that returns a torch.optim.Optimizer, such as "
            f"lambda groups: torch.optim.SGD(groups, momentum=0.9); it returned a {type(optimizer).__name__}"
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{type(optimizer).__name__} evaluates the loss several times in a step, through a closure, and fit draws "
            "new samples each time: choose an optimiser whose step() needs no closure"
        )
    return optimizer


def _checked_scheduler(scheduler: Any) -> LRScheduler:
    if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, LRScheduler):
        raise TypeError(
            "scheduler must be a function of an optimiser that returns a torch.optim.lr_scheduler.LRScheduler without "
            f"a metric, which is stepped after every training step; it returned a {type(scheduler).__name__} (for a "
            "rate that follows a validation metric, lower group['lr'] of trainer.optimizer in a Callback)"
        )
    return scheduler


def _settings(values: dict[str, Any]) -> str:
    plain = bool | int | float | str | None | tuple | list
    named = (f"{key}={value!r}" for key, value in sorted(values.items()) if isinstance(value, plain))
    return ", ".join(text for text in named if " at 0x" not in text)
