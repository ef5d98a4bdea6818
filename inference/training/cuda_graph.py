"""A step for which the host never waits, and its replay as a CUDA graph."""

from collections.abc import Callable

import pyro
import torch
from torch import Tensor

from probattn.functional import errors
from probattn.inference.distributed.collectives import world
from probattn.inference.training.objective import StepCoefficients
from probattn.inference.training.step import Outcome, Step, clip


def check_alone(accelerator: str) -> None:
    """Refuses to capture the steps of several GPUs, which wait for each other, before the processes are joined.

    Args:
        accelerator: as for Fabric.

    Raises:
        ValueError: torchrun has started several processes, on GPUs.
    """
    on_gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    if world().size > 1 and on_gpu:
        raise ValueError(
            f"capture=True replays the step of a GPU that is alone, and torchrun started {world().size} processes: "
            "set capture=False (train.capture=false), or train in one process without torchrun"
        )


class CUDAGraphStep:
    """A step that gathers on the device whether anything failed, to be asked for at the end of an epoch.

    On a GPU it is replayed as a CUDA graph for each shape of batches, so that neither Pyro nor Python costs anything;
    on a CPU it runs as it is. Matrices that are factorised get the smallest jitter, needed or not.

    Args:
        step: whose objective and optimiser it takes; the optimiser must be capturable.
        like: a parameter, for device and dtype.
    """

    def __init__(self, step: Step, *, like: Tensor) -> None:
        self.objective, self.optimizer = step.objective, step.optimizer
        self.backward, self.clip_norm = step.backward, step.clip_norm
        self.weights = StepCoefficients(*like.new_zeros(len(StepCoefficients._fields)))
        self.failed = torch.zeros((), dtype=torch.bool, device=like.device)
        self.run = GraphCache(self._run) if like.is_cuda else self._run

    def __call__(self, batch: tuple, weights: StepCoefficients) -> Outcome:
        """Changes the weights by one batch; what it returns holds until the next call."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.weights.lr
        for mine, value in zip(self.weights, weights, strict=True):
            mine.fill_(value)
        return self.run(batch)

    def has_failed(self) -> bool:
        """Whether any step since the last call would have been an error, or have needed a larger jitter."""
        failed = self.failed.item()
        self.failed.zero_()
        return failed

    def _run(self, batch: tuple) -> Outcome:
        with pyro.validation_enabled(False), errors.deferred() as failures:
            loss = self.objective(batch, self.weights)
            self.optimizer.zero_grad()
            self.backward(loss)
            if self.clip_norm is not None:
                failures.append(~clip(self.optimizer, self.clip_norm).isfinite())
            self.optimizer.step()
            failures.append(~loss.isfinite())
            self.failed.logical_or_(torch.stack(failures).any())
        return Outcome(loss.detach(), self.objective.terms())


class GraphCache:
    """A function of batches, replayed as a CUDA graph, one for each shape of batches.

    The first calls with a shape run as they are, as PyTorch wants it before a capture; they count like any other.

    Args:
        function: takes a tuple of tensors; nothing in it may wait for the device.
        warm_up: calls before a capture.
        most: graphs at most; batches of yet other shapes run as they are.
    """

    def __init__(self, function: Callable[[tuple], Outcome], *, warm_up: int = 3, most: int = 4) -> None:
        self.function, self.warm_up, self.most = function, warm_up, most
        self.calls: dict[tuple, int] = {}
        self.graphs: dict[tuple, tuple[tuple, torch.cuda.CUDAGraph, Outcome]] = {}
        self.aside = torch.cuda.Stream()

    def __call__(self, batch: tuple) -> Outcome:
        """What the function returns, in tensors that the next call with the shape overwrites."""
        shape = tuple((tuple(part.shape), part.dtype) for part in batch)
        self.calls[shape] = self.calls.get(shape, 0) + 1
        if shape not in self.graphs:
            if self.calls[shape] <= self.warm_up or len(self.graphs) == self.most:
                return self._as_it_is(batch)
            self.graphs[shape] = self._captured(batch)
        inputs, graph, outcome = self.graphs[shape]
        for mine, given in zip(inputs, batch, strict=True):
            mine.copy_(given)
        graph.replay()
        return outcome

    def _as_it_is(self, batch: tuple) -> Outcome:
        self.aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.aside):
            outcome = self.function(batch)
        torch.cuda.current_stream().wait_stream(self.aside)
        return outcome

    def _captured(self, batch: tuple) -> tuple[tuple, torch.cuda.CUDAGraph, Outcome]:
        inputs, graph = tuple(part.clone() for part in batch), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outcome = self.function(inputs)
        return inputs, graph, outcome
