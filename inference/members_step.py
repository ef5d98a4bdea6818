"""One step of several members of an ensemble: losses and gradients of all are computed together."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from probattn.functional import errors
from probattn.inference.captured import Graphs
from probattn.inference.elbo import ELBOS
from probattn.inference.objective import Objective, Weights
from probattn.inference.step import Outcome, clip
from probattn.inference.trainer import Trainer


class MembersStep:
    """A step of members that differ in their weights and batches alone.

    Parameters and batches are stacked in a leading dimension, over which the first member's program is mapped
    (:func:`torch.vmap`); each member then clips its own gradient and steps by its own optimiser. As in a
    :class:`~probattn.inference.captured.DeferredStep` nothing waits for the device: what fails is a flag of its member.

    Args:
        trainers: of the members, on one device.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers, self.steps = list(trainers), [trainer.eager for trainer in trainers]
        first, self.options = trainers[0].model, trainers[0].settings
        self.num_data, self.elbo = first.num_data, ELBOS[self.options.elbo]()
        modules = [self.elbo(trainer.model, trainer.guide) for trainer in trainers]
        self.module, self.parameters = modules[0], [dict(module.named_parameters()) for module in modules]
        like = next(first.parameters())
        self.failed = like.new_zeros(len(self.steps), dtype=torch.bool)
        self.captured = self.options.capture and like.is_cuda
        self.weights = Weights(*like.new_zeros(len(Weights._fields)))
        self.run = Graphs(self._run) if self.captured else self._run

    def __call__(self, batches: Sequence[tuple[Tensor, ...]], weights: Weights) -> list[Outcome]:
        """Changes each member's weights by its batch; what it returns holds until the next call.

        Raises:
            RuntimeError: batches of different shapes, or what ``vmap`` cannot do.
        """
        if self.captured:
            for mine, value in zip(self.weights, weights, strict=True):
                mine.fill_(value)
        else:
            self.weights = weights
        for step in self.steps:
            for group in step.optimizer.param_groups:
                group["lr"] = self.weights.lr
        return self.run(stacked(batches))

    def has_failed(self) -> list[bool]:
        """Of which members any step since the last call would have been an error, or have needed a larger jitter."""
        failed = self.failed.tolist()
        self.failed.zero_()
        return failed

    def losses(self, batch: tuple[Tensor, ...], weights: Weights) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Loss of each member, in nats an example, the terms that sum to it, and whether anything failed.

        Each is ``(members,)``.

        Args:
            batch: tensors ``(members, batch, ...)``.
            weights: of the step.
        """
        on_cpu = self.failed.device.type == "cpu"  # whose fused attention vmap can but loop over
        parameters = {name: torch.stack([each[name] for each in self.parameters]) for name in self.parameters[0]}
        with (
            pyro.validation_enabled(False),
            DrawnAnew(),
            sdpa_kernel(SDPBackend.MATH) if on_cpu else nullcontext(),
        ):
            loss_of = torch.vmap(lambda *member: self._loss(*member, weights), randomness="different")
            return loss_of(parameters, batch)

    def _loss(
        self, parameters: dict[str, Tensor], batch: tuple[Tensor, ...], weights: Weights
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """One member's, as vmap sees it."""

        def module(*inputs: Tensor) -> Tensor:
            return functional_call(self.module, parameters, inputs)

        objective = Objective(module, self.elbo, options=self.options, num_data=self.num_data)
        with errors.deferred() as failures:
            loss = objective(batch, weights)
        failures.append(~loss.isfinite())
        return loss, objective.terms(), torch.stack(failures).any()

    def _run(self, batch: tuple[Tensor, ...]) -> list[Outcome]:
        losses, terms, failed = self.losses(batch, self.weights)
        for step in self.steps:
            step.optimizer.zero_grad()
        losses.sum().backward()
        for step, flag in zip(self.steps, failed, strict=True):
            if step.clip_norm is not None:
                flag.logical_or_(~clip(step.optimizer, step.clip_norm).isfinite())
            step.optimizer.step()
        self.failed.logical_or_(failed)
        return [
            Outcome(loss, {name: values[member] for name, values in terms.items()})
            for member, loss in enumerate(losses.detach())
        ]


class DrawnAnew(TorchFunctionMode):
    """Makes a new tensor of every draw that PyTorch's normal distributions write into an empty one.

    That one has no dimension of members, in which the draws are to differ.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is torch.Tensor.normal_ and len(args) == 1 and not kwargs:
            return torch.randn(args[0].shape, dtype=args[0].dtype, device=args[0].device)
        return func(*args, **(kwargs or {}))


def stacked(batches: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Batches of one shape as one, ``(members, batch, ...)``."""
    return tuple(torch.stack(parts) for parts in zip(*batches, strict=True))
