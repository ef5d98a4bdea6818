"""Measurements against closed forms and known times."""

import time

import pytest
import torch
from torch.torch_version import TorchVersion

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.experiments.bench import measure
from probattn.experiments.bench.steps import layer_step

SHAPE = {"dim": 32, "heads": 4, "batch": 3, "tokens": 16}
BATCH, TOKENS, DIM, HEADS = 3, 16, 32, 4
FLOATS = 2**18
"""Number of floats in a MiB."""


def linear(outputs):
    """Forward, and backward to inputs and weights, of a linear map of all tokens."""
    return 3 * 2 * BATCH * TOKENS * DIM * outputs


def test_operations_of_softmax_attention():
    product = 2 * BATCH * TOKENS**2 * DIM  # QKᵀ or PV; backward computes QKᵀ anew and has four more
    attention = 7 * product if TorchVersion(torch.__version__) >= "2.15" else 0
    assert measure.operations(layer_step(SoftmaxAttention, **SHAPE)) == linear(3 * DIM) + linear(DIM) + attention


def test_operations_of_kep_svgp_attention():
    rank = 5
    counted = measure.operations(layer_step(KEPSVGPAttention.partial(rank=rank), **SHAPE))
    weights_and_scores = 4 * linear(rank)  # the weights from f(X), which has all of these tokens
    values, draw = 3 * 2 * BATCH * TOKENS * HEADS * rank**2, 2 * BATCH * HEADS * rank**3
    expected = linear(2 * DIM) + weights_and_scores + values + linear(HEADS * rank)
    assert expected <= counted <= expected + 11 * draw  # and the posterior's covariance and its KL


def test_peak_memory_is_that_of_the_largest_moment():
    before = torch.zeros(5 * FLOATS)

    def step():
        one = torch.zeros(2 * FLOATS)
        two = torch.zeros(3 * FLOATS)
        del one
        return [torch.zeros(FLOATS), two, before]

    assert measure.peak_memory(step, device="cpu") == pytest.approx(5 * 2**20, rel=1e-3)


def test_cases_take_turns_and_rows_are_relative_to_the_first(monkeypatch):
    order, naps = [], {"a": 0.02, "b": 0.04}

    def step(name):
        order.append(name)
        time.sleep(naps[name])
        return torch.ones(FLOATS if name == "a" else 3 * FLOATS)

    monkeypatch.setattr(measure, "TURN", 0.05)
    rows = measure.measure("title", {name: lambda name=name: step(name) for name in "ab"}, rounds=3, device="cpu")
    turns = "".join(name for name, before in zip(order, [None, *order], strict=False) if name != before)
    assert turns.endswith("ababab")
    assert list(rows.case) == ["a", "b"]
    assert rows.ms[0] >= 20  # a busy machine sleeps longer
    assert rows.ms[1] >= 40
    assert rows.ratio.tolist() == pytest.approx((rows.ms / rows.ms[0]).tolist())
    assert rows.memory_ratio.tolist() == pytest.approx([1, 3], rel=0.01)
    assert (rows.low <= rows.ms).all()
    assert (rows.ms <= rows.high).all()
