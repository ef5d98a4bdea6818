"""Time, peak memory and floating-point operations of steps."""

import gc
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

# What is measured; it can be repeated and leaves no state behind.
Step = Callable[[], Any]
# Minimum length of a turn in seconds.
TURN = 0.5


def measure(section: str, cases: Mapping[str, Step], *, rounds: int, device: str) -> pd.DataFrame:
    """Measure steps, and return one row a case, relative to the first.

    Columns: section, case, ms (the median of the steps) between the quartiles low and high, ratio,
    peak_mib, memory_ratio, gflop, gflop_per_s.

    Args:
        section: title of the rows.
        cases: steps by name.
        rounds: in a round each case has one turn, so that other load on the machine affects all of
            them.
        device: ``"cpu"`` or ``"cuda"``.
    """
    gflop = [operations(step) / 1e9 for step in cases.values()]
    peaks = [peak_memory(step, device=device) / 2**20 for step in cases.values()]
    threads = torch.get_num_threads()
    timers = {
        name: Timer("step()", globals={"step": step}, num_threads=threads)
        for name, step in cases.items()
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, timer in timers.items():
            times[name] += timer.blocked_autorange(min_run_time=TURN).times
    low, median, high = (
        1e3 * np.array([np.quantile(seconds, [0.25, 0.5, 0.75]) for seconds in times.values()]).T
    )
    rows = pd.DataFrame(
        {"section": section, "case": list(cases), "ms": median, "low": low, "high": high}
    )
    rows = rows.assign(
        ratio=median / median[0], peak_mib=peaks, memory_ratio=np.divide(peaks, peaks[0])
    )
    return rows.assign(gflop=gflop, gflop_per_s=1e3 * np.array(gflop) / median)


def operations(step: Step) -> int:
    """Count the operations of matrix products and attention kernels in a step."""
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def peak_memory(step: Step, *, device: str) -> int:
    """Return the peak of PyTorch's allocator in bytes during a step, beyond what was allocated
    before it."""
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no messages on stderr
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiler:
        step()
    events = [
        event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    sizes = [
        event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())
    ]  # negative where freed
    return int(np.cumsum([0, *sizes]).max())
