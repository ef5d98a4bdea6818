"""Training step without host synchronisation, replayed as a CUDA graph on GPUs."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pyro
import torch
from torch import Tensor

from probattn.functional import errors
from probattn.inference.distributed.collectives import world
from probattn.inference.non_finite import find_non_finite
from probattn.inference.training.objective import StepCoefficients
from probattn.inference.training.step import Outcome, Step


def check_single_gpu(accelerator: str) -> None:
    """Refuse CUDA graphs on several GPUs before the processes are connected.

    DDP waits for the device in each step if a parameter has no gradient.

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
        step: eager step whose objective and optimisers are used; on a GPU, the optimiser must be capturable.
        like: a parameter, for device and dtype.
        max_batches: maximum number of batches of a step.
    """

    def __init__(self, step: Step, *, like: Tensor, max_batches: int = 1) -> None:
        self.eager, self.objective, self.optimizers = step, step.objective, step.optimizers
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.coefficients = StepCoefficients(*like.new_zeros(len(StepCoefficients._fields), dtype=dtype))
        self.loss_weights = like.new_zeros(max_batches, dtype=dtype).unbind()
        # PyTorch's fused Adam reads a rate that is a tensor of a GPU as float32, whatever the parameters are.
        self.lrs = like.new_zeros(len(self.groups), dtype=torch.float32 if like.is_cuda else dtype).unbind()
        self.constants = self._constants()
        self._written: dict[int, float] = {}
        self.failed = torch.zeros((), dtype=torch.bool, device=like.device)
        self.graphs = make_graph_cache(like.device)

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups of all optimisers."""
        return [group for optimizer in self.optimizers.all for group in optimizer.param_groups]

    def __call__(
        self, batches: Sequence[tuple], coefficients: StepCoefficients, loss_weights: Sequence[float] = (1.0,)
    ) -> Outcome:
        """Update the parameters as :class:`Step` does; the next call may overwrite the outcome.

        Raises:
            ValueError: a scheduler or a callback has changed a setting of the optimiser other than its learning rate.
        """
        if self._constants() != self.constants:
            raise ValueError(
                "capture=True replays the optimiser's step with the settings that it was recorded with, and a "
                "scheduler or callback has changed one other than lr (OneCycleLR and CyclicLR cycle the momentum "
                "unless cycle_momentum=False); change lr alone, or set capture=False"
            )
        for static, value in zip(self.coefficients, coefficients, strict=True):
            self._write(static, value)
        for static, value in zip(self.loss_weights, loss_weights, strict=False):
            self._write(static, value)
        with self._learning_rates_on_device():
            return self._run(tuple(batches)) if self.graphs is None else self.graphs(self._run, tuple(batches))

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Run what is inside on the stream on which steps are captured, eager steps as well; on a CPU, as ever.

        Autograd remembers the stream on which it first met a parameter, and a capture may not wait for another one.
        """
        with nullcontext() if self.graphs is None else self.graphs.current_stream():
            yield

    def forget_graphs(self) -> None:
        """Capture anew from the next steps on, after the tensors of the optimisers have been replaced."""
        self.graphs = make_graph_cache(self.failed.device, like=self.graphs)

    def has_failed(self) -> bool:
        """Return True if a step since the last call would have raised an error or needed a larger jitter.

        Also if a parameter is now NaN or Inf.
        """
        failed = self.failed.item()
        self.failed.zero_()
        return failed or find_non_finite((), self.eager.parts, ()) is not None

    def _write(self, static: Tensor, value: float) -> None:
        """Write a number to a scalar on the device, unless it is there already."""
        if self._written.get(id(static)) != value:
            static.fill_(value)
            self._written[id(static)] = value

    def _constants(self) -> list[dict[str, Any]]:
        """Return the settings of each parameter group that the graph holds as numbers."""
        return [{key: each[key] for key in each if key not in ("params", "lr", "initial_lr")} for each in self.groups]

    @contextmanager
    def _learning_rates_on_device(self) -> Iterator[None]:
        """Replace the learning rates, which schedulers compute on the host, by tensors that a graph can read."""
        on_host = [group["lr"] for group in self.groups]
        try:
            for group, static, value in zip(self.groups, self.lrs, on_host, strict=True):
                group["lr"] = static.fill_(value)
            yield
        finally:
            for group, value in zip(self.groups, on_host, strict=True):
                group["lr"] = value

    def _run(self, batches: tuple[tuple, ...]) -> Outcome:
        with pyro.validation_enabled(False), errors.deferred() as failures:
            self.optimizers.zero_grad()
            outcomes = []
            for batch, weight in zip(batches, self.loss_weights, strict=False):
                loss = self.objective(batch, self.coefficients, weight)
                self.eager.backward(loss)
                outcomes.append(Outcome(loss.detach(), self.objective.terms()))
            outcome = Outcome.total(outcomes)
            if self.eager.clip_norm is not None:
                failures.add(~self.eager.clip_gradients().isfinite())
            self.optimizers.step()
            failures.add(~outcome.loss.isfinite())
            self.failed.logical_or_(failures.flag)
        self.objective.elbo.traces = ()  # which hold this step's autograd graph
        return outcome


class GraphCache:
    """Replays a function of a step's batches as a CUDA graph, one per number and shape of batches.

    The first calls with a shape run eagerly, as PyTorch requires before a capture; they are ordinary calls. All calls
    must be made inside :meth:`current_stream`.

    Args:
        warmup: number of eager calls before a capture.
        max_graphs: maximum number of graphs; batches of further shapes always run eagerly.
        stream: stream of the steps; by default a new one.
    """

    def __init__(self, *, warmup: int = 3, max_graphs: int = 8, stream: torch.cuda.Stream | None = None) -> None:
        self.warmup, self.max_graphs = warmup, max_graphs
        self.calls: dict[tuple, int] = {}
        self.graphs: dict[tuple, tuple[tuple, torch.cuda.CUDAGraph, Outcome]] = {}
        self.stream = torch.cuda.Stream() if stream is None else stream
        self.pool = torch.cuda.graph_pool_handle()  # one: an outcome is read before the next graph overwrites it

    @contextmanager
    def current_stream(self) -> Iterator[None]:
        """Make the stream of the steps the current one; it and the present one wait for each other."""
        outer = torch.cuda.current_stream()
        self.stream.wait_stream(outer)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            outer.wait_stream(self.stream)

    def __call__(self, function: Callable[[tuple], Outcome], batches: tuple[tuple, ...]) -> Outcome:
        """Return the function's outcome in tensors that the next call overwrites.

        Args:
            function: takes a tuple of batches, which are tuples of tensors; must not synchronise with the host. It is
                no attribute, so that a step and its graphs do not refer to each other.
            batches: its argument.
        """
        shape = tuple(tuple((tuple(part.shape), part.dtype) for part in batch) for batch in batches)
        self.calls[shape] = self.calls.get(shape, 0) + 1
        if shape not in self.graphs:
            if self.calls[shape] <= self.warmup or len(self.graphs) == self.max_graphs:
                return function(batches)
            self.graphs[shape] = self._capture(function, batches)
        inputs, graph, outcome = self.graphs[shape]
        for statics, values in zip(inputs, batches, strict=True):
            for static, value in zip(statics, values, strict=True):
                static.copy_(value)
        graph.replay()
        return outcome

    def _capture(
        self, function: Callable[[tuple], Outcome], batches: tuple[tuple, ...]
    ) -> tuple[tuple, torch.cuda.CUDAGraph, Outcome]:
        inputs, graph = tuple(tuple(part.clone() for part in batch) for batch in batches), torch.cuda.CUDAGraph()
        with without_garbage_collection(), torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            outcome = function(inputs)
        return inputs, graph, outcome


def make_graph_cache(device: torch.device, *, like: GraphCache | None = None) -> GraphCache | None:
    """Return an empty cache on the stream of another one, or on a new one; None for a CPU, where steps run eagerly."""
    return GraphCache(stream=None if like is None else like.stream) if device.type == "cuda" else None


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect garbage, and then none inside: a CUDA graph or a GPU tensor that dies in a cycle would end a capture."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
