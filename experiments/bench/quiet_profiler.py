"""PyTorch's profiler without messages."""

import os
from collections.abc import Iterable

from torch.profiler import ProfilerActivity, profile


def quiet_profile(activities: Iterable[ProfilerActivity], *, profile_memory: bool = False) -> profile:
    """Return a profiler that writes nothing to stderr, provided that it is the process's first."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    return profile(activities=activities, profile_memory=profile_memory, acc_events=True)
