"""Every option of the Gaussian-process layers with every other: the loss is finite and every
parameter gets a gradient.

Each pair of values of two options is covered, not the whole grid.
"""

import contextlib
import itertools
import random
import warnings

import pytest
import torch
from attention_layers import Network
from elbos import Trace_ELBO, TraceMeanField_ELBO

import probattn
from probattn.models import Classifier

MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 0, 1], [0, 0, 1, 0, 0]]).bool()
COMMON = {
    "masked": [False, True],
    "dtype": [torch.float32, torch.float64],
    "drawn": ["example", "batch", 2],
    "elbo": [TraceMeanField_ELBO, Trace_ELBO],
}
CORRELATED = COMMON | {
    "canonical_guide": ["posterior", "prior", "learned"],
    "collapsed": [False, True],
    "output": ["mean", "draw"],
    "regulariser_norm": ["scalar", "column", "example"],
    "learn_noise": [False, True],
}
GRIDS = {
    "KernelAttention": COMMON
    | {"kernel": ["rbf", "ard", "exponential"], "symmetric": [False, True]},
    "SGPAttention": COMMON
    | {
        "inducing": [3, None],
        "kernel": ["ard", "exponential", "rbf"],
        "draws": ["marginal", "joint"],
    }
    | {"prior": [None, "laplace", "student_t"], "family": ["full", "diagonal", "lowrank", "delta"]},
    "CGPAttention": CORRELATED | {"noisy_canonical": [True, False], "noisy_output": [True, False]},
    "SparseCGPAttention": CORRELATED
    | {"inducing": [3], "inducing_keys": [None, 2], "tokens": [None, 5]},
    "RFFCGPAttention": CORRELATED
    | {"features": [4], "regulariser": ["joint", "keys"]}
    | {"frequencies": ["orthogonal", "independent", "equal", "sampled"]},
    "RFFGPAttention": COMMON
    | {"features": [4, 8], "output": ["mean", "draw"], "alpha": [0.0, 0.5], "bias": [False, True]}
    | {"frequencies": ["orthogonal", "independent", "equal", "sampled"]}
    | {"symmetric": [False, True], "prior": [None, "laplace", "student_t", "ard"]}
    | {"family": ["full", "diagonal", "lowrank", "delta"]},
    "AnchoredAttention": COMMON
    | {"anchors": [3, 8], "output": ["mean", "draw"], "learn_noise": [False, True]}
    | {"alpha": [0.0, 0.5], "bias": [False, True]},
}


def makes_sense(layer, row):
    if layer == "SGPAttention":
        return row["inducing"] is not None or (row["prior"] is None and row["family"] == "full")
    if layer == "RFFGPAttention":
        fixed = row["prior"] is None and row["family"] == "full"
        return row["frequencies"] == "sampled" or fixed
    if row.get("regulariser") == "keys" and row["collapsed"]:
        return row["canonical_guide"] == "posterior"
    return not (layer == "SparseCGPAttention" and row["tokens"] and row["masked"])


def pairs(row):
    return set(itertools.combinations(((name, str(value)) for name, value in row.items()), 2))


def pairwise(layer):
    """Rows that hold together every pair of values that the whole grid holds: greedily, the best of
    a random few."""
    grid, chooser, chosen = GRIDS[layer], random.Random(0), []
    everything = [
        dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    everything = [row for row in everything if makes_sense(layer, row)]
    missing = set().union(*map(pairs, everything))
    while missing:
        useful = [
            row
            for row in chooser.sample(everything, min(400, len(everything)))
            if pairs(row) & missing
        ]
        useful = useful or [row for row in everything if pairs(row) & missing]
        chosen.append(max(useful, key=lambda row: len(pairs(row) & missing)))
        missing -= pairs(chosen[-1])
    return chosen


@pytest.mark.parametrize(
    ("layer", "row"), [(layer, row) for layer in GRIDS for row in pairwise(layer)]
)
def test_each_pair_of_options_trains(layer, row):
    masked, dtype, drawn, elbo, family = (row.get(name, "full") for name in (*COMMON, "family"))
    options = {name: value for name, value in row.items() if name not in (*COMMON, "family")}
    model = Classifier(Network(getattr(probattn, layer).partial(**options)), num_data=40).to(dtype)
    module = elbo()(model, probattn.guides.for_model(model, family))
    with warnings.catch_warnings():
        if (
            False in (row.get("noisy_output"), row.get("noisy_canonical"))
            or row.get("inducing", 0) is None
        ):
            warnings.simplefilter("ignore", probattn.JitterWarning)
        with contextlib.nullcontext() if drawn == "batch" else probattn.draws(drawn):
            loss = module(
                torch.randn(4, 5, 8, dtype=dtype),
                torch.tensor([0, 1, 2, 1]),
                MASK if masked else None,
            )
        loss.backward()
    assert loss.isfinite()
    gradients = {
        name: value.grad for name, value in module.named_parameters() if value.requires_grad
    }
    assert [
        n
        for n, grad in gradients.items()
        if grad is None or not grad.isfinite().all() or not grad.any()
    ] == []
