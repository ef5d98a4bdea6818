"""Optimisers of a run: parameter groups, Adam or the user's, natural gradients, and learning-rate
schedules."""

import fnmatch
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from probattn.inference.objective.natural_gradient import NaturalGradientDescent, gaussian_modules
from probattn.inference.training.options import TrainOptions

ParameterGroup = dict[str, Any]
"""Parameters ``params``, their learning rate ``lr`` and their ``weight_decay``, as PyTorch's
optimisers take them."""
OptimizerFactory = Callable[[list[ParameterGroup]], Optimizer]
"""Function of parameter groups that returns an optimiser of them."""
SchedulerFactory = Callable[[Optimizer], LRScheduler]
"""Function of an optimiser that returns its learning-rate scheduler, which is stepped once per
training step."""

WEIGHT = re.compile(r"weights?|weight_.*(?<!_unconstrained)|.*_weight")
"""Names of weights in a module, but not of the unconstrained values of constrained parameters."""


class Optimizers:
    """Optimiser of a run, natural-gradient steps beside it, and a learning-rate scheduler of each.

    Args:
        model, guide: materialised modules on their device.
        options: of the run.
        num_data: number of training examples.
        steps_per_epoch: number of training steps of an epoch.
        optimizer: factory of the optimiser; None is AdamW, or Adam without
            ``options.decoupled_weight_decay``.
        scheduler: factory of the schedulers; None is warm-up and decay by the options
            (:func:`scheduled_lr`).

    Raises:
        ValueError: natural gradients of a guide without Gaussian modules.
    """

    def __init__(
        self,
        model: nn.Module,
        guide: nn.Module,
        *,
        options: TrainOptions,
        num_data: int,
        steps_per_epoch: int,
        optimizer: OptimizerFactory | None = None,
        scheduler: SchedulerFactory | None = None,
    ) -> None:
        adam = torch.optim.AdamW if options.decoupled_weight_decay else torch.optim.Adam
        optimizer = optimizer or partial(adam, lr=options.lr, fused=True)
        self.optimizer = optimizer(parameter_groups(model, guide, options=options))
        self.all = [self.optimizer]
        if options.guide_optimizer == "ngd" and any(True for _ in guide.parameters()):
            modules = gaussian_modules(guide)
            if not modules:
                raise ValueError(
                    "guide_optimizer='ngd' trains the families 'full' and 'diagonal', which this "
                    "guide lacks"
                )
            lr = options.lr * options.guide_lr_scale
            scale = num_data / options.kl_weight_of(num_data)
            self.all.append(NaturalGradientDescent(modules, lr=lr, scale=scale))

        def factor(step: int) -> float:
            return scheduled_lr(step, options=options, steps_per_epoch=steps_per_epoch) / options.lr

        scheduler = scheduler or partial(LambdaLR, lr_lambda=factor)
        self.schedulers = [scheduler(scheduled) for scheduled in self.all]

    def parts(self) -> tuple[Any, ...]:
        """Return all optimisers and schedulers, whose states a checkpoint holds."""
        return (*self.all, *self.schedulers)

    def step(self) -> None:
        """Update all parameters, and set the learning rates of the next step."""
        for part in self.parts():
            part.step()

    def lr(self) -> float:
        """Return the learning rate of the next step, of the parameters whose rate has no factor."""
        groups = self.optimizer.param_groups
        base = self.optimizer.defaults.get("lr")
        without_factor = [group for group in groups if group.get("initial_lr") == base]
        return float((without_factor or groups)[0]["lr"])


def scheduled_lr(step: int, *, options: TrainOptions, steps_per_epoch: int) -> float:
    """Return the learning rate of a step, counted from 0: linear warm-up to ``lr``, then decay to
    ``min_lr``.

    The decay follows half a cosine or a line (CGP paper, sec. 5.1). Parameters whose rate is a
    multiple of ``lr`` keep that multiple at every step.
    """
    steps = options.epochs * steps_per_epoch
    warmup = round(options.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return options.lr * (step + 1) / (warmup + 1)
    progress = (step - warmup) / max(steps - warmup, 1)
    share = 1 - progress
    if options.schedule == "cosine":
        share = (1 + math.cos(math.pi * progress)) / 2
    return options.min_lr + (options.lr - options.min_lr) * share


def parameter_groups(
    model: nn.Module, guide: nn.Module, *, options: TrainOptions
) -> list[ParameterGroup]:
    """Return the parameter groups of a model and its guide for a PyTorch optimiser.

    Weight decay acts on the weights of the model (see :func:`decayed_names`). The guide has none:
    the KL divergence regularises it.

    Args:
        model, guide: materialised modules.
        options: give ``lr``, ``weight_decay``, ``lr_scale``, ``guide_lr`` and
            ``guide_optimizer``: with natural gradients, Gaussian modules of the guide are left out.

    Raises:
        ValueError: a pattern of ``lr_scale`` that matches no parameter.
    """
    groups: defaultdict[tuple[float, float], list[nn.Parameter]] = defaultdict(list)
    factors = lr_factors(model, options.lr_scale or {})
    decayed = set(decayed_names(model))
    for name, parameter in model.named_parameters():
        decay = options.weight_decay if name in decayed else 0.0
        groups[decay, factors[name]].append(parameter)
    natural: set[nn.Parameter] = set()
    guide_factor = options.guide_lr_scale
    if options.guide_optimizer == "ngd":
        natural |= set(nn.ModuleList(gaussian_modules(guide)).parameters())
        guide_factor = 1.0
    for parameter in guide.parameters():
        if parameter not in natural:
            groups[0.0, guide_factor].append(parameter)
    return [
        {"params": parameters, "lr": options.lr * factor, "weight_decay": decay}
        for (decay, factor), parameters in groups.items()
    ]


def lr_factors(model: nn.Module, lr_scale: Mapping[str, float]) -> dict[str, float]:
    """Return the factor on the learning rate of each parameter of a model, by name (see
    ``TrainOptions.lr_scale``).

    Raises:
        ValueError: a pattern that matches no parameter.
    """
    factors = {name: 1.0 for name, _ in model.named_parameters()}
    for pattern, factor in lr_scale.items():
        matched = set()
        for alternative in pattern.split("|"):
            matched |= set(fnmatch.filter(factors, alternative))
        if not matched:
            raise ValueError(
                f"lr_scale: {pattern!r} matches no parameter of the model, such as "
                f"{list(factors)[:3]}"
            )
        factors |= dict.fromkeys(matched, factor)
    return factors


def decayed_names(model: nn.Module) -> list[str]:
    """Return the names of the parameters with weight decay: matrices (or larger tensors) that
    multiply activations.

    These have two dimensions or more and are called ``weight``, ``weights``, ``weight_…`` or
    ``…_weight``, as in PyTorch's linear, convolution, embedding, recurrent and attention layers, or
    are listed by their module in its attribute ``decayed_parameters``. Biases, normalisation
    layers, position and class embeddings that are bare parameters, inducing inputs, scales, noise,
    kernel parameters and the unconstrained values of constrained parameters (``PyroParam``) have no
    weight decay, since zero is not a natural value for them.
    """
    decayed = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            is_weight = WEIGHT.fullmatch(name) or name in getattr(module, "decayed_parameters", ())
            if is_weight and parameter.dim() >= 2 and "norm" not in type(module).__name__.lower():
                decayed.add(parameter)
    return [name for name, parameter in model.named_parameters() if parameter in decayed]
