"""Wall-clock times of steps that take turns, so that what slows the machine slows all of them."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

TURN = 0.5
"""Seconds of a turn at least."""
Step = Callable[[], Any]
"""What is measured: run once, it leaves nothing behind that it would need anew the next time."""


def seconds(step: Step, device: str) -> float:
    """Seconds from an idle device to an idle device."""
    synchronise(device)
    started = time.perf_counter()
    step()
    synchronise(device)
    return time.perf_counter() - started


def alternate(cases: Mapping[str, Step], *, rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds of the steps of each case; in a round every case has one turn."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, step in cases.items():
            times[name] += turn(step, device)
    return times


def turn(step: Step, device: str) -> list[float]:
    """Seconds of as many steps as fill a turn, so that most find the caches as a step of their own kind left them."""
    times = [seconds(step, device)]
    while sum(times) < TURN:
        times.append(seconds(step, device))
    return times


def synchronise(device: str) -> None:
    """Waits until the device has done all that it was asked for."""
    if device == "cuda":
        torch.cuda.synchronize()
