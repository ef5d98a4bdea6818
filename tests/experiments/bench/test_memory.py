"""Peak memory of steps whose peak is known by hand."""

import pytest
import torch

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.experiments.bench import memory
from probattn.experiments.bench.steps import layer_step
from probattn.experiments.runs.environment import total_memory

KB = 250  # float32 numbers in 1000 bytes


def test_the_most_that_is_held_at_once():
    kept = []

    def step():
        first = torch.empty(4 * KB)
        second = torch.empty(8 * KB)  # 12 kB
        del first
        kept.append(torch.empty(2 * KB))  # 10 kB
        del second
        kept.append(torch.empty(3 * KB))  # 5 kB

    assert memory.peak(step, "cpu") == 12_000


def test_what_was_there_before_does_not_count_even_if_it_is_freed(recwarn):
    old = [torch.empty(1000 * KB)]

    def step():
        old.clear()
        torch.empty(KB)

    assert memory.peak(step, "cpu") == 1000


def test_garbage_from_before_does_not_count():
    def step():
        held = torch.empty(KB)
        cycle = [held]
        cycle.append(cycle)

    assert [memory.peak(step, "cpu") for _ in range(3)] == 3 * [1000]


def test_workspaces_inside_an_operator_count():
    x = torch.randn(1000 * KB)
    assert memory.peak(lambda: x.logsumexp(0), "cpu") >= 1_000_000


def test_forward_and_backward_of_a_linear_map():
    x, weights = torch.randn(100, 10), torch.randn(10, 50, requires_grad=True)

    def step():
        y = (x @ weights).exp()  # product and result, 20 kB each; the product is kept by nobody
        y.backward(y.detach())  # gradients of product, 20 kB, and weights, 2 kB, while the result is held
        weights.grad = None

    assert memory.peak(step, "cpu") == 42_000


@pytest.mark.parametrize("factory", [SoftmaxAttention, KEPSVGPAttention.partial(rank=2)])
def test_a_layer_step_leaves_nothing_behind(factory, capfd):
    step = layer_step(factory, 16, 2, batch=3, tokens=8)
    first = memory.peak(step, "cpu")
    assert [memory.peak(step, "cpu") for _ in range(2)] == 2 * [first]
    assert capfd.readouterr().err == ""  # PyTorch says if memory from before was freed


def test_a_gpu_counts_from_what_was_there_before(monkeypatch):
    held, most = [700], [9000]  # the peak of something earlier

    def step():
        held[0] += 300
        most[0] = max(most[0], held[0])
        held[0] -= 100

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: most.__setitem__(0, held[0]))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: held[0])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: most[0])
    assert memory.peak(step, "cuda") == 300


def test_a_machine_has_memory():
    assert 2**28 < total_memory("cpu") < 2**45
