"""A captured step is replayed: it computes on, without the code that recorded it."""

import torch
from tape import replay_on_cpu

from probattn.experiments.bench import flops
from probattn.experiments.bench.captured import WARMUP, captured
from probattn.experiments.bench.meter import Meter
from probattn.experiments.bench.steps import training_step


def test_a_replay_takes_the_steps_of_the_step(monkeypatch):
    replay_on_cpu(monkeypatch)
    weights = [torch.nn.Parameter(torch.full((3,), 2.0)) for _ in range(2)]
    calls = []

    def loss():
        calls.append(1)
        return weights[1].square().sum()

    step = training_step(lambda: weights[0].square().sum(), weights[:1])
    replay = captured(training_step(loss, weights[1:]))
    assert len(calls) == WARMUP + 1
    for _ in range(5):
        replay()
    for _ in range(WARMUP + 5):
        step()
    assert len(calls) == WARMUP + 1
    torch.testing.assert_close(weights[1], weights[0])


def test_on_a_gpu_each_section_has_a_second_one_of_replays(monkeypatch):
    replay_on_cpu(monkeypatch)
    monkeypatch.setattr(flops, "matmul_rates", lambda device: {"float32": 1e9})
    meter = Meter("cpu")
    x = torch.randn(4, 4)
    (alone,) = meter.with_replays("products", {"a": lambda: x @ x}, rounds=1)
    assert "operations" in alone["rows"][0]
    monkeypatch.setattr(meter, "device", "cuda")
    monkeypatch.setattr(meter, "measure", lambda cases, *, rounds: Meter("cpu").measure(cases, rounds=rounds))
    one, other = meter.with_replays("products", {"a": lambda: x @ x, "b": lambda: x + x}, rounds=1)
    assert (one["title"], other["title"]) == ("products", "products, captured")
    assert [row["case"] for row in other["rows"]] == ["a, captured", "b, captured"]
