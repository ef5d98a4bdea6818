"""Training step without host synchronisation, replayed as a CUDA graph on GPUs."""

from collections.abc import Callable

import pyro
import torch
from torch import Tensor

from probattn.functional import errors
from probattn.handlers import exclusive
from probattn.inference.distributed.collectives import world
from probattn.inference.training.objective import StepCoefficients
from probattn.inference.training.parameter_groups import set_lr
from probattn.inference.training.step import Outcome, Step, clip_gradients


def check_single_gpu(accelerator: str) -> None:
    """Refuse CUDA graphs on several GPUs, whose steps wait for each other, before the processes are connected.

    Args:
        accelerator: as for Fabric.

    Raises:
        ValueError: torchrun has started several processes on GPUs.
    """
    on_gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    if world().size > 1 and on_gpu:
        raise ValueError(
            f"capture=True replays the steps of a single GPU, and torchrun started {world().size} processes: "
            "set capture=False (train.capture=false), or train in one process without torchrun"
        )


class CUDAGraphStep:
    """Training step that records failures in a flag on the device, which is read at the end of an epoch.

    On a GPU the step is replayed as one CUDA graph per shape of batches, which removes the overhead of Pyro and Python;
    on a CPU it runs eagerly. The smallest jitter is added to every matrix that is factorised, needed or not.

    Args:
        step: eager step whose objective and optimiser are used; the optimiser must be capturable.
        like: a parameter, for device and dtype.
    """

    def __init__(self, step: Step, *, like: Tensor) -> None:
        self.objective, self.optimizer, self.optimizers = step.objective, step.optimizer, step.optimizers
        self.backward, self.clip_norm = step.backward, step.clip_norm
        self.coefficients = StepCoefficients(*like.new_zeros(len(StepCoefficients._fields)))
        self.failed = torch.zeros((), dtype=torch.bool, device=like.device)
        self.run = GraphCache(self._run) if like.is_cuda else self._run

    def __call__(self, batch: tuple, coefficients: StepCoefficients) -> Outcome:
        """Update the parameters on one batch; the next call may overwrite the outcome."""
        for static, value in zip(self.coefficients, coefficients, strict=True):
            static.fill_(value)
        return self.run(batch)

    def has_failed(self) -> bool:
        """Return True if a step since the last call would have raised an error or needed a larger jitter."""
        failed = self.failed.item()
        self.failed.zero_()
        return failed

    def _run(self, batch: tuple) -> Outcome:
        with exclusive(), pyro.validation_enabled(False), errors.deferred() as failures:
            set_lr(self.optimizers, self.coefficients.lr)  # here, so that a graph's replay computes the products
            loss = self.objective(batch, self.coefficients)
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            self.backward(loss)
            if self.clip_norm is not None:
                failures.append(~clip_gradients(self.optimizer, self.clip_norm).isfinite())
            for optimizer in self.optimizers:
                optimizer.step()
            failures.append(~loss.isfinite())
            self.failed.logical_or_(torch.stack(failures).any())
        return Outcome(loss.detach(), self.objective.terms())


class GraphCache:
    """Function of batches that is replayed as a CUDA graph, one per shape of batches.

    The first calls with a shape run eagerly, as PyTorch requires before a capture; they are ordinary calls.

    Args:
        function: takes a tuple of tensors; must not synchronise with the host.
        warmup: number of eager calls before a capture.
        max_graphs: maximum number of graphs; batches of further shapes always run eagerly.
    """

    def __init__(self, function: Callable[[tuple], Outcome], *, warmup: int = 3, max_graphs: int = 4) -> None:
        self.function, self.warmup, self.max_graphs = function, warmup, max_graphs
        self.calls: dict[tuple, int] = {}
        self.graphs: dict[tuple, tuple[tuple, torch.cuda.CUDAGraph, Outcome]] = {}
        self.side_stream = torch.cuda.Stream()

    def __call__(self, batch: tuple) -> Outcome:
        """Return the function's outcome in tensors that the next call with the same shape overwrites."""
        shape = tuple((tuple(part.shape), part.dtype) for part in batch)
        self.calls[shape] = self.calls.get(shape, 0) + 1
        if shape not in self.graphs:
            if self.calls[shape] <= self.warmup or len(self.graphs) == self.max_graphs:
                return self._run_eagerly(batch)
            self.graphs[shape] = self._capture(batch)
        inputs, graph, outcome = self.graphs[shape]
        for static, value in zip(inputs, batch, strict=True):
            static.copy_(value)
        graph.replay()
        return outcome

    def _run_eagerly(self, batch: tuple) -> Outcome:
        self.side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side_stream):
            outcome = self.function(batch)
        torch.cuda.current_stream().wait_stream(self.side_stream)
        return outcome

    def _capture(self, batch: tuple) -> tuple[tuple, torch.cuda.CUDAGraph, Outcome]:
        inputs, graph = tuple(part.clone() for part in batch), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outcome = self.function(inputs)
        return inputs, graph, outcome
