"""Steps that are replayed as CUDA graphs, so that a benchmark measures the GPU and not the host."""

import pyro
import torch

from probattn.experiments.bench.timing import Step
from probattn.functional import errors
from probattn.inference.training.cuda_graph import without_garbage_collection

WARMUP = 3
"""Eager steps before a capture, as PyTorch requires."""


def captured(step: Step) -> Step:
    """Capture a step and return its replay; failures of factorisations are not reported.

    Args:
        step: reads and writes the same tensors in each call; its optimiser must be capturable.
    """
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with pyro.validation_enabled(False), errors.deferred():
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        with without_garbage_collection(), torch.cuda.graph(graph, stream=stream):
            step()
    return graph.replay
