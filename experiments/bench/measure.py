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


def measure(
    section: str,
    cases: Mapping[str, Step],
    *,
    rounds: int,
    device: str,
) -> pd.DataFrame:
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
    gflop = np.array([operations(step) / 1e9 for step in cases.values()])
    peaks = np.array([peak_memory(step, device=device) / 2**20 for step in cases.values()])
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, step in cases.items():
            timer = Timer(
                "step()",
                globals={"step": step},
                num_threads=torch.get_num_threads(),
            )
            seconds[name] += timer.blocked_autorange(min_run_time=TURN).times
    quartiles = [1e3 * np.quantile(times, [0.25, 0.5, 0.75]) for times in seconds.values()]
    low, median, high = np.transpose(quartiles)
    return pd.DataFrame(
        {
            "section": section,
            "case": list(cases),
            "ms": median,
            "low": low,
            "high": high,
            "ratio": median / median[0],
            "peak_mib": peaks,
            "memory_ratio": peaks / peaks[0],
            "gflop": gflop,
            "gflop_per_s": 1e3 * gflop / median,
        }
    )


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
    events = profiler.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    allocated = np.cumsum([0] + [event.nbytes() for event in changes])  # negative where freed
    return int(allocated.max())
