"""Options of the Gaussian-process layers with each other: the loss is finite, and every parameter
gets a gradient."""

import contextlib
import warnings

import pytest
import torch
from attention_layers import Network
from elbos import Trace_ELBO, TraceMeanField_ELBO
from hypothesis import assume, given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize("layer", GRIDS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_any_options_train_together(layer, data):
    choices = {name: st.sampled_from(values) for name, values in GRIDS[layer].items()}
    row = data.draw(st.fixed_dictionaries(choices))
    assume(makes_sense(layer, row))
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
