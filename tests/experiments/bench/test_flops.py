"""Floating-point operations against closed forms."""

import time

import pytest
import torch
from torch.torch_version import TorchVersion

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.experiments.bench import flops
from probattn.experiments.bench.steps import layer_step

BATCH, TOKENS, DIM, HEADS = 3, 16, 32, 4


def linear(outputs):
    """Forward, and backward to inputs and weights, of a linear map of all tokens."""
    return 3 * 2 * BATCH * TOKENS * DIM * outputs


def test_softmax_attention():
    step = layer_step(SoftmaxAttention, DIM, HEADS, batch=BATCH, tokens=TOKENS)
    product = 2 * BATCH * TOKENS**2 * DIM  # QKᵀ or PV; backward computes QKᵀ anew and has four more
    attention = 7 * product if TorchVersion(torch.__version__) >= "2.15" else 0
    assert flops.count(step) == linear(3 * DIM) + linear(DIM) + attention


def test_kep_svgp_attention():
    rank = 5
    step = layer_step(KEPSVGPAttention.partial(rank=rank), DIM, HEADS, batch=BATCH, tokens=TOKENS)
    weights = 2 * linear(rank)  # both from f(X), which has all of these tokens
    scores = 2 * linear(rank)
    values = 3 * 2 * BATCH * TOKENS * HEADS * rank**2
    draw = 2 * BATCH * HEADS * rank**3
    counted = flops.count(step)
    expected = linear(2 * DIM) + weights + scores + values + linear(HEADS * rank)
    assert expected + draw <= counted <= expected + 10 * draw  # the posterior's covariance and its KL


def test_factorisations_and_solves():
    matrix, b = torch.eye(6).expand(2, 6, 6).contiguous(), torch.randn(2, 6, 5)
    tril = torch.linalg.cholesky_ex(matrix)[0]
    assert flops.count(lambda: torch.linalg.cholesky_ex(matrix)) == 2 * 6**3 // 3
    assert flops.count(lambda: torch.linalg.solve_triangular(tril, b, upper=False)) == 2 * 5 * 6**2
    assert flops.count(lambda: torch.linalg.solve_triangular(tril, b.mT, upper=False, left=False)) == 2 * 5 * 6**2
    assert flops.count(lambda: torch.cholesky_solve(b, tril)) == 2 * 2 * 5 * 6**2


def test_the_rate_is_that_of_the_best_product(monkeypatch):
    times = iter([0, 4, 10, 12, 20, 23])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    assert flops.matmul_rates("cpu", size=8, rounds=3) == {"float32": pytest.approx(2 * 8**3 / 2)}
