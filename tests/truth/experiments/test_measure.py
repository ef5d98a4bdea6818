"""Measurements against closed forms and known times; each timed step computes all that its name
says."""

import pytest
import torch
from torch.torch_version import TorchVersion

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.experiments.bench import measure, suites
from probattn.experiments.bench.steps import layer_step, step
from probattn.experiments.config import presets
from probattn.experiments.runs.build import build
from probattn.inference import ELBOLoss

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
    assert (
        measure.operations(layer_step(SoftmaxAttention, **SHAPE))
        == linear(3 * DIM) + linear(DIM) + attention
    )


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


def test_a_training_step_changes_every_weight():
    changes = [
        "network.dim=20",
        "network.heads=2",
        "network.depth=2",
        "network.mlp_dim=8",
        "data.batch_size=4",
    ]
    settings = presets.preset("kep-svgp/cifar10").with_changes(changes)
    data = suites.random_images(4)
    module = ELBOLoss(*build(settings, data)).train()
    train = step(module, *data.sample(4, generator=torch.Generator()))
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    train()
    after = dict(module.named_parameters())
    assert [name for name, value in before.items() if value.equal(after[name])] == []
    assert all(parameter.grad is None for parameter in after.values())
