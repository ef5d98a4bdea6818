"""Weight decay of the parameters of every layer and network, by name, and in the optimiser."""

import dataclasses
import re

import pytest
import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam
from torch import nn

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    guides,
)
from probattn.inference import CheckpointError, TrainOptions, fit
from probattn.inference.io.checkpoint import read
from probattn.inference.training.optimizers import decayed_names, lr_factors, parameter_groups
from probattn.models import Classifier, TextTransformer, ViT, likelihoods
from probattn.models.embeddings import FILTERS, SpelledEmbedding, WordEmbedding

ALL, OUT = ["query_key_value.weight"], ["out.weight"]
LAYERS = [
    (SoftmaxAttention, {}, ALL),
    (KernelAttention, {"kernel": "ard"}, ALL),
    (KernelAttention, {"kernel": "exponential"}, ALL),
    (KEPSVGPAttention, {"rank": 3, "merge": "add", "projection": "plain"}, ["query_key.weight", "w_e", "w_r"]),
    (KEPSVGPAttention, {"rank": 3, "merge": "concat", "tokens": 4}, ["query_key.weight", "projection", "merge"]),
    (
        KEPSVGPAttention,
        {"rank": 3, "merge": "concat_lowrank", "tokens": 4},
        ["query_key.weight", "projection", "a", "b"],
    ),
    (SGPAttention, {"inducing": 4, "bias": True}, ["query_value.weight"]),
    (SGPAttention, {"inducing": None}, ["query_value.weight", "form.spread.weight"]),
    (CGPAttention, {"canonical_guide": "prior"}, [*ALL, "latent.weight"]),
    (CGPAttention, {"canonical_guide": "learned"}, [*ALL, "latent.weight", "canonical.linear.weight"]),
    (SparseCGPAttention, {}, [*ALL, "latent.weight"]),
]
NAMES = {
    "w_e": "projection.w_e",
    "w_r": "projection.w_r",
    "projection": "projection.weights",
    "merge": "merge.weights",
    "a": "merge.a",
    "b": "merge.b",
}
SHAPE = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 8, "depth": 2, "heads": 2}


@pytest.mark.parametrize(("layer", "options", "expected"), LAYERS)
def test_layers(layer, options, expected):
    names = {NAMES.get(name, name) for name in [*expected, *OUT]}
    assert set(decayed_names(layer(8, 2, **options))) == names


def test_networks():
    """Linear and convolution weights of all blocks and embeddings; no bias, norm, position or class token."""
    network = ViT(**SHAPE, mlp_dim=8, attention=KEPSVGPAttention.partial(rank=2, merge="add"))
    per_block = ("attention.query_key", "attention.out", "mlp.0", "mlp.3")
    blocks = [f"blocks.{i}.{name}.weight" for i in range(2) for name in per_block]
    projections = [f"blocks.{i}.attention.projection.weights" for i in range(2)]
    assert set(decayed_names(network)) == {"embed.weight", "head.weight", *blocks, *projections}
    assert {"positions", "norm.weight", "embed.bias", "blocks.0.attention.log_scale"} <= set(
        dict(network.named_parameters())
    )


@pytest.mark.parametrize("spelled", [False, True])
def test_text_networks(spelled):
    embedding = SpelledEmbedding(20, 10, 8) if spelled else WordEmbedding(20, 8)
    network = TextTransformer(embedding, max_length=5, classes=2, dim=8, depth=1, heads=2, mlp_dim=8)
    names = {"embedding.weight"}
    if spelled:
        parts = ("characters", *(f"filters.{i}" for i in range(len(FILTERS))), "gate", "change", "out")
        names = {"embedding.words.weight", *(f"embedding.spelling.{part}.weight" for part in parts)}
    per_block = ("attention.query_key_value", "attention.out", "mlp.0", "mlp.3")
    assert set(decayed_names(network)) == names | {f"blocks.0.{name}.weight" for name in per_block} | {"head.weight"}
    assert "positions" in dict(network.named_parameters())


def test_what_is_not_a_weight_by_its_module_or_its_name():
    class Own(PyroModule):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm([3, 4])
            self.group, self.conv = nn.GroupNorm(2, 4), nn.Conv2d(2, 4, 3)
            self.attention, self.recurrent = nn.MultiheadAttention(4, 2), nn.GRU(3, 4)
            self.tied = nn.Linear(4, 4)
            self.tied_again = nn.Linear(4, 4)
            self.tied_again.weight = self.tied.weight
            self.scale = PyroParam(torch.ones(2, 3), constraint=constraints.positive)
            self.weight = PyroParam(torch.ones(2, 3), constraint=constraints.positive)
            self.cls_token, self.log_variance = nn.Parameter(torch.zeros(1, 4)), nn.Parameter(torch.zeros(2, 2))
            self.inducing = nn.ParameterList([nn.Parameter(torch.zeros(2, 3))])

    assert set(decayed_names(Own())) == {
        "conv.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "recurrent.weight_ih_l0",
        "recurrent.weight_hh_l0",
        "tied.weight",
    }
    assert decayed_names(likelihoods.Gaussian(0.1)) == []


def classifier(attention):
    torch.manual_seed(0)
    model = Classifier(ViT(**SHAPE, mlp_dim=8, attention=attention), num_data=6)
    return model, guides.for_model(model), [(torch.randn(6, 1, 4, 4), torch.arange(6) % 3)]


@pytest.mark.parametrize(
    "attention", [KEPSVGPAttention.partial(rank=2), CGPAttention, SGPAttention.partial(inducing=3), SparseCGPAttention]
)
def test_fit_moves_other_parameters_as_without_weight_decay(attention):
    """One step of Adam moves each parameter by its gradient's sign: decay of 100 changes that of weights alone."""
    results = []
    for decay in (0.0, 100.0):
        model, guide, batches = classifier(attention)
        fit(model, guide, batches, options=TrainOptions(epochs=1, weight_decay=decay, num_samples=2), progress=False)
        results.append({name: value.detach().clone() for name, value in model.named_parameters()})
    changed = {name for name, value in results[0].items() if not torch.equal(value, results[1][name])}
    assert changed == set(decayed_names(model))


def test_every_parameter_is_in_one_group():
    model, guide, _ = classifier(KEPSVGPAttention.partial(rank=2))
    first, second = parameter_groups(model, guide, options=TrainOptions(lr=1.0, weight_decay=0.3))
    assert (first["weight_decay"], second["weight_decay"]) == (0.3, 0.0)
    together = [id(parameter) for group in (first, second) for parameter in group["params"]]
    expected = [id(parameter) for module in (model, guide) for parameter in module.parameters()]
    assert sorted(together) == sorted(expected)
    assert [group["lr"] for group in (first, second)] == [1.0, 1.0]
    weights, others, own = parameter_groups(model, guide, options=TrainOptions(lr=1.0, weight_decay=0.3, guide_lr=30.0))
    assert [group["lr"] for group in (weights, others, own)] == [1.0, 1.0, 30.0]
    assert [id(each) for each in own["params"]] == [id(each) for each in guide.parameters()]
    (only,) = parameter_groups(nn.LayerNorm(3), nn.Identity(), options=TrainOptions(weight_decay=0.3))
    assert only["weight_decay"] == 0.0


class Interrupted(list):
    """Batches of one epoch, then an interruption."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        if self.passes > 1:
            raise KeyboardInterrupt
        return super().__iter__()


def test_a_run_with_weight_decay_goes_on_with_its_groups(tmp_path):
    options = TrainOptions(epochs=3, weight_decay=0.1, num_samples=2)
    results = []
    for out in ("whole", "stopped"):
        model, guide, batches = classifier(KEPSVGPAttention.partial(rank=2))
        if out == "stopped":
            with pytest.raises(KeyboardInterrupt):
                fit(model, guide, Interrupted(batches), options=options, out=tmp_path / out, progress=False)
            model, guide, batches = classifier(KEPSVGPAttention.partial(rank=2))
        fit(model, guide, batches, options=options, out=tmp_path / out, resume=out == "stopped", progress=False)
        results.append({name: value.detach().clone() for name, value in model.named_parameters()})
        groups = read(tmp_path / out / "last.pt")["extra"]["optimizers"][0][1]["param_groups"]
        assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


class Two(nn.Module):
    """Two parts with a norm."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
        self.head = nn.Linear(3, 2)


@pytest.mark.parametrize(
    ("lr_scale", "expected"),
    [
        ({}, (1, 1, 1, 1, 1, 1)),
        ({"encoder.*": 0.1}, (0.1, 0.1, 0.1, 0.1, 1, 1)),
        ({"encoder.*": 0.1, "*.bias": 2}, (0.1, 2, 0.1, 2, 1, 2)),
        ({"*.bias": 2, "encoder.*": 0.1}, (0.1, 0.1, 0.1, 0.1, 1, 2)),
        ({"*": 3, "head.*|encoder.1.*|absent": 0}, (3, 3, 0, 0, 0, 0)),
        ({"encoder.?.weight": 5}, (5, 1, 5, 1, 1, 1)),
    ],
)
def test_the_last_pattern_that_matches_a_name_gives_its_learning_rate(lr_scale, expected):
    assert tuple(lr_factors(Two(), lr_scale).values()) == expected


@pytest.mark.parametrize("pattern", ["network.encoder.*", "Encoder.*", "encoder", "", "a|b"])
def test_a_pattern_that_matches_nothing_is_refused(pattern):
    message = re.escape(f"lr_scale: {pattern!r} matches no parameter of the model, such as ['encoder.0.weight'")
    with pytest.raises(ValueError, match=message):
        lr_factors(Two(), {"head.*": 1, pattern: 0.1})


def test_groups_differ_in_decay_and_rate_and_hold_each_parameter_once():
    model, guide = Two(), nn.Linear(1, 1)
    groups = parameter_groups(model, guide, options=TrainOptions(lr=1.0, weight_decay=0.1, lr_scale={"encoder.*": 0.5}))
    found = [(group["weight_decay"], group["lr"], group["params"]) for group in groups]
    linear, norm = model.encoder
    expected = [
        (0.1, 0.5, [linear.weight]),
        (0.1, 1.0, [model.head.weight]),
        (0.0, 0.5, [linear.bias, norm.weight, norm.bias]),
        (0.0, 1.0, [model.head.bias, guide.weight, guide.bias]),
    ]
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert all(first is second for first, second in zip(one[2], other[2], strict=True))


def test_each_parameter_moves_by_its_own_learning_rate():
    """Adam's first step has the length of the learning rate."""
    model, guide, batches = classifier(SoftmaxAttention)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    scale = {"network.blocks.*": 0.1, "network.head.*": 10.0}
    options = {"epochs": 1, "lr": 1e-3, "min_lr": 1e-3, "lr_scale": scale}
    fit(model, guide, batches[:1], options=TrainOptions(**options), progress=False)
    for name, value in model.named_parameters():
        step = (value - before[name]).abs().max().item()
        factor = 0.1 if ".blocks." in name else 10.0 if ".head." in name else 1.0
        assert step == pytest.approx(1e-3 * factor, rel=1e-2)


def test_the_norms_and_biases_of_a_bert_have_no_weight_decay():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=20, **sizes))
    names = {name for name, _ in bert.named_parameters()}
    assert names - set(decayed_names(bert)) == {name for name in names if "bias" in name or "LayerNorm" in name}


def test_a_resumed_run_keeps_its_learning_rates(tmp_path):
    scale = {"network.blocks.*": 0.1, "network.head.*": 10.0}
    options = TrainOptions(epochs=3, lr_scale=scale, num_samples=2)
    results = []
    for out in ("whole", "stopped"):
        model, guide, batches = classifier(KEPSVGPAttention.partial(rank=2))
        if out == "stopped":
            with pytest.raises(KeyboardInterrupt):
                fit(model, guide, Interrupted(batches), options=options, out=tmp_path / out, progress=False)
            model, guide, batches = classifier(KEPSVGPAttention.partial(rank=2))
        fit(model, guide, batches, options=options, out=tmp_path / out, resume=out == "stopped", progress=False)
        results.append({name: value.detach().clone() for name, value in model.named_parameters()})
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())
    model, guide, batches = classifier(KEPSVGPAttention.partial(rank=2))
    other = dataclasses.replace(options, lr_scale=None)
    with pytest.raises(CheckpointError, match=r"lr_scale: \{.*0\.1"):
        fit(model, guide, batches, options=other, out=tmp_path / "whole", resume=True, progress=False)
