"""Every option of the Gaussian-process layers with every other: the loss is finite and every parameter gets a gradient.

Each pair of values of two options is covered, not the whole grid.
"""

import itertools
import random
import warnings

import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from torch import nn

from probattn import (
    AnchoredAttention,
    CGPAttention,
    JitterWarning,
    KernelAttention,
    SGPAttention,
    SparseCGPAttention,
    draws,
    guides,
)
from probattn.models import Classifier

COMMON = {
    "mask": ["none", "some"],
    "dtype": [torch.float32, torch.float64],
    "drawn": ["example", "batch", 2],
    "elbo": [TraceMeanField_ELBO, Trace_ELBO],
}
CORRELATED = {
    "canonical_guide": ["posterior", "prior", "learned"],
    "collapsed": [False, True],
    "output": ["mean", "draw"],
    "regulariser_norm": ["scalar", "column", "example"],
    "learn_noise": [False, True],
}
FAMILIES = ["full", "diagonal", "lowrank", "delta"]
GRIDS = {
    KernelAttention: {"kernel": ["rbf", "ard", "exponential"], "symmetric": [False, True], **COMMON},
    SGPAttention: {
        "inducing": [3, None],
        "kernel": ["ard", "exponential", "rbf"],
        "draws": ["marginal", "joint"],
        "prior": [None, "laplace", "student_t"],
        "family": FAMILIES,
        **COMMON,
    },
    CGPAttention: {**CORRELATED, "noisy_canonical": [True, False], "noisy_output": [True, False], **COMMON},
    SparseCGPAttention: {**CORRELATED, "inducing": [3], "inducing_keys": [None, 2], "tokens": [None, 5], **COMMON},
    AnchoredAttention: {
        "anchors": [3],
        "output": ["mean", "draw"],
        "learn_noise": [False, True],
        "alpha": [0.0, 0.5],
        "bias": [False, True],
        **COMMON,
    },
}


def makes_sense(layer, row):
    if layer is SGPAttention:
        return row["inducing"] is not None or (row["prior"] is None and row["family"] == "full")
    if layer is SparseCGPAttention:
        return not (row["tokens"] and row["mask"] == "some")
    return True


def rows(layer):
    grid = GRIDS[layer]
    for values in itertools.product(*grid.values()):
        row = dict(zip(grid, values, strict=True))
        if makes_sense(layer, row):
            yield row


def pairs(row):
    return set(itertools.combinations(((name, str(value)) for name, value in row.items()), 2))


def pairwise(layer):
    """Rows that hold together every pair of values that the whole grid holds: greedily, the best of a random few."""
    everything = list(rows(layer))
    chooser = random.Random(0)
    left = set().union(*map(pairs, everything))
    chosen = []
    while left:
        useful = [row for row in chooser.sample(everything, min(400, len(everything))) if pairs(row) & left]
        useful = useful or [row for row in everything if pairs(row) & left]
        chosen.append(max(useful, key=lambda row: len(pairs(row) & left)))
        left -= pairs(chosen[-1])
    return chosen


class Network(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.attention, self.head = layer, nn.Linear(layer.dim, 3)

    def forward(self, x, mask=None):
        hidden = self.attention(x, mask)
        if mask is not None:
            hidden = hidden.where(mask.unsqueeze(-1), 0.0)
        return self.head(hidden.mean(-2))


def step(layer, row):
    """Loss of one step, and the names of the parameters without a gradient."""
    row = dict(row)
    mask, dtype, drawn, elbo = (row.pop(name) for name in COMMON)
    family = row.pop("family", "full")
    torch.manual_seed(1)
    model = Classifier(Network(layer(8, 2, **row)), num_data=40).to(dtype)
    guide = guides.for_model(model, family)
    x, y = torch.randn(4, 5, 8, dtype=dtype), torch.tensor([0, 1, 2, 1])
    mask = (
        torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 0, 1], [0, 0, 1, 0, 0]]).bool()
        if mask == "some"
        else None
    )
    module = elbo()(model, guide)
    with warnings.catch_warnings():
        if row.get("noisy_output") is False or row.get("noisy_canonical") is False or row.get("inducing", 0) is None:
            warnings.simplefilter("ignore", JitterWarning)
        if drawn == "batch":
            loss = module(x, y, mask)
        else:
            with draws(drawn):
                loss = module(x, y, mask)
        loss.backward()
    idle = [
        name
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
        and (parameter.grad is None or not parameter.grad.isfinite().all() or not parameter.grad.any())
    ]
    return loss.item(), idle


def label(row):
    return "-".join(
        str(value).removeprefix("torch.") if not isinstance(value, type) else value.__name__ for value in row.values()
    )


PAIRWISE = [(layer, row) for layer in GRIDS for row in pairwise(layer)]


@pytest.mark.parametrize(("layer", "row"), PAIRWISE, ids=lambda v: label(v) if isinstance(v, dict) else v.__name__)
def test_each_pair_of_options_trains(layer, row):
    loss, idle = step(layer, row)
    assert torch.tensor(loss).isfinite()
    assert idle == []
