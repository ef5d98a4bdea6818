"""Which parameters have weight decay, and the groups that an optimiser gets."""

import pytest
import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam
from small_fit import build
from torch import nn

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
)
from probattn.inference import TrainOptions, fit
from probattn.inference.training.optimizers import decayed_names
from probattn.models import TextTransformer
from probattn.models.embeddings import SpelledEmbedding


@pytest.mark.parametrize(
    ("layer", "options", "expected"),
    [
        (KernelAttention, {"kernel": "ard"}, "query_key_value out"),
        (SGPAttention, {"inducing": 4, "bias": True}, "query_value out"),
        (SGPAttention, {"inducing": None}, "query_value out form.spread"),
        (
            CGPAttention,
            {"canonical_guide": "learned"},
            "query_key_value out latent canonical.linear",
        ),
        (SparseCGPAttention, {}, "query_key_value out latent"),
    ],
)
def test_weights_of_layers_decay_and_scales_inducing_inputs_and_biases_do_not(
    layer, options, expected
):
    assert set(decayed_names(layer(8, 2, **options))) == {
        f"{name}.weight" for name in expected.split()
    }
    lowrank = {"query_key.weight", "out.weight", "projection.weights", "merge.a", "merge.b"}
    assert (
        set(decayed_names(KEPSVGPAttention(8, 2, rank=3, merge="concat_lowrank", tokens=4)))
        == lowrank
    )


def test_matrices_of_a_network_decay_and_norms_positions_and_biases_do_not():
    sizes = {
        "classes": 3,
        "dim": 8,
        "depth": 1,
        "heads": 2,
        "mlp_dim": 8,
        "attention": SoftmaxAttention,
    }
    network = TextTransformer(SpelledEmbedding(20, 10, 8), max_length=5, **sizes)
    matrices = {
        n for n, value in network.named_parameters() if n.endswith("weight") and value.dim() > 1
    }
    assert set(decayed_names(network)) == matrices


def test_what_is_not_a_weight_by_its_module_or_its_name():
    class Own(PyroModule):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm([3, 4])
            self.group = nn.GroupNorm(2, 4)
            self.conv = nn.Conv2d(2, 4, 3)
            self.attention, self.recurrent = nn.MultiheadAttention(4, 2), nn.GRU(3, 4)
            self.tied, self.tied_again = nn.Linear(4, 4), nn.Linear(4, 4)
            self.tied_again.weight = self.tied.weight
            self.weight = PyroParam(torch.ones(2, 3), constraint=constraints.positive)
            self.cls_token = nn.Parameter(torch.zeros(1, 4))
            self.log_variance = nn.Parameter(torch.zeros(2, 2))
            self.inducing = nn.ParameterList([nn.Parameter(torch.zeros(2, 3))])

    attention, recurrent = ("in_proj_weight", "out_proj.weight"), ("weight_ih_l0", "weight_hh_l0")
    names = {
        *(f"attention.{name}" for name in attention),
        *(f"recurrent.{name}" for name in recurrent),
    }
    assert set(decayed_names(Own())) == {"conv.weight", "tied.weight", *names}


def test_fit_moves_other_parameters_as_without_weight_decay():
    """One step of Adam moves each parameter by its gradient's sign: decay of 100 changes that of
    weights alone."""
    results = []
    for decay in (0.0, 100.0):
        model, guide, train, _ = build()
        options = TrainOptions(epochs=1, weight_decay=decay)
        fit(model, guide, [next(iter(train))], options=options, progress=False)
        modules = {"model": model, "guide": guide}
        results.append(
            {
                (part, name): p
                for part, module in modules.items()
                for name, p in module.named_parameters()
            }
        )
    changed = {key for key, value in results[0].items() if not torch.equal(value, results[1][key])}
    assert changed == {("model", name) for name in decayed_names(model)}


def test_entries_that_share_memory_are_trained_apart():
    """Adam in PyTorch's fused form would give them one value."""
    losses = []
    for expanded in (True, False):
        model, guide, train, _ = build()
        bias = torch.zeros(1).expand(3)
        model.network.head.bias = nn.Parameter(bias if expanded else bias.contiguous())
        model.network.register_buffer("spare", bias if expanded else bias.contiguous())
        losses.append([step["loss"] for step in fit(model, guide, train, progress=False).steps])
        assert len(set(model.network.head.bias.tolist())) == 3
    assert losses[0] == losses[1]
