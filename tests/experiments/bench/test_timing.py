"""Cases take turns, and a GPU is waited for on both sides of what is timed."""

import time

import pytest
import torch

from probattn.experiments.bench import timing


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless its hand is moved."""
    hand = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: hand[0])
    return hand


def test_cases_take_turns(clock):
    order, takes = [], {"a": iter([1, 2, 30]), "b": iter([4, 5, 6])}

    def step(name):
        order.append(name)
        clock[0] += next(takes[name])

    times = timing.alternate({"a": lambda: step("a"), "b": lambda: step("b")}, rounds=3, device="cpu")
    assert order == ["a", "b"] * 3
    assert times == {"a": [1, 2, 30], "b": [4, 5, 6]}


@pytest.mark.parametrize(("device", "expected"), [("cuda", 3.0), ("cpu", 0.0)])
def test_the_work_that_a_gpu_was_given_is_waited_for(clock, monkeypatch, device, expected):
    queue = [5.0]  # seconds of work from before, which is not this step's

    def wait():
        clock[0] += sum(queue)
        queue.clear()

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    assert timing.seconds(lambda: queue.append(3.0), device) == expected
