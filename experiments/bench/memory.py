"""Peak memory of a step, beyond what was allocated before it."""

import gc

import torch
from torch.profiler import ProfilerActivity

from probattn.experiments.bench.quiet_profiler import quiet_profile
from probattn.experiments.bench.timing import Step, synchronise


def peak(step: Step, device: str) -> int:
    """Return the peak in bytes, as PyTorch's allocator reports it, including workspaces inside operators."""
    gc.collect()
    return _cuda_peak(step) if device == "cuda" else _cpu_peak(step)


def _cuda_peak(step: Step) -> int:
    synchronise("cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    synchronise("cuda")
    return torch.cuda.max_memory_allocated() - before


def _cpu_peak(step: Step) -> int:
    with quiet_profile([ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()  # negative where memory is freed; memory from before the step has no event
        most = max(most, held)
    return most
