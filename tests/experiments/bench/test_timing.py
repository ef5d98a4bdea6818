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


def test_cases_take_turns_of_as_many_steps_as_fill_them(clock, monkeypatch):
    order, takes = [], {"a": iter([1, 2, 30]), "b": iter([4, 5, 3, 2])}

    def step(name):
        order.append(name)
        clock[0] += next(takes[name])

    monkeypatch.setattr(timing, "TURN", 5)
    times = timing.alternate({"a": lambda: step("a"), "b": lambda: step("b")}, rounds=1, device="cpu")
    assert "".join(order) == "aaabb"
    assert times == {"a": [1, 2, 30], "b": [4, 5]}
    monkeypatch.setattr(timing, "TURN", 0)
    takes["a"] = iter([1, 1])
    assert timing.alternate({name: lambda name=name: step(name) for name in "ab"}, rounds=2, device="cpu") == {
        "a": [1, 1],
        "b": [3, 2],
    }
    assert "".join(order) == "aaabb" + "abab"


@pytest.mark.parametrize(("device", "expected"), [("cuda", 3.0), ("cpu", 0.0)])
def test_the_work_that_a_gpu_was_given_is_waited_for(clock, monkeypatch, device, expected):
    queue = [5.0]  # seconds of work from before, which is not this step's

    def wait():
        clock[0] += sum(queue)
        queue.clear()

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    assert timing.seconds(lambda: queue.append(3.0), device) == expected
