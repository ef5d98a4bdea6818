"""Wall-clock times of steps that take turns, so that other load on the machine affects all of them."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

TURN = 0.5
"""Minimum length of a turn in seconds."""
Step = Callable[[], Any]
"""Step to measure; it can be repeated and leaves no state behind."""


def seconds(step: Step, device: str) -> float:
    """Return the seconds of a step, from an idle device to an idle device."""
    synchronise(device)
    started = time.perf_counter()
    step()
    synchronise(device)
    return time.perf_counter() - started


def alternate(cases: Mapping[str, Step], *, rounds: int, device: str) -> dict[str, list[float]]:
    """Return the seconds of the steps of each case; in a round every case has one turn."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, step in cases.items():
            times[name] += turn(step, device)
    return times


def turn(step: Step, device: str) -> list[float]:
    """Time as many steps as fill a turn, so that most of them find the caches filled by a step of the same case."""
    times = [seconds(step, device)]
    while sum(times) < TURN:
        times.append(seconds(step, device))
    return times


def synchronise(device: str) -> None:
    """Wait until the device is idle."""
    if device == "cuda":
        torch.cuda.synchronize()
