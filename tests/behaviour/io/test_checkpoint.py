"""Checkpoints and safetensors: written atomically, read safely, loaded whole or not at all."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from damage import accepted
from pyro.infer.autoguide import AutoNormal
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from probattn import (
    AnchoredAttention,
    KEPSVGPAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    guides,
)
from probattn.inference import CheckpointError, load, load_safetensors, save, save_safetensors
from probattn.inference.io import checkpoint
from probattn.inference.objective import guide_checks

FORMATS = pytest.mark.parametrize(
    ("write", "read"),
    [(save, load), (save_safetensors, load_safetensors)],
    ids=["checkpoint", "safetensors"],
)


def build(rank=2, heads=2, family="full", **options):
    model = nn.Sequential(KEPSVGPAttention(4, heads, rank=rank, **options), nn.Linear(4, 2))
    return model, guides.for_model(model, family)


def weights(*modules):
    return [
        {name: value.clone() for name, value in module.state_dict().items()}
        for module in modules
        if module
    ]


def same(one, other):
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


def refused(read, path, modules, words):
    """Check that the file is refused with these words, and that no weight has changed."""
    before = weights(*modules)
    with pytest.raises(CheckpointError, match=words):
        read(path, *modules)
    assert same(weights(*modules), before)


class Expanded(nn.Module):
    """A module whose parameter and buffer are views of fewer numbers."""

    def __init__(self):
        super().__init__()
        self.parameter = nn.Parameter(torch.randn(1, 3).expand(2, 3))
        self.register_buffer("buffer", torch.randn(2, 1).expand(2, 3))


@FORMATS
def test_expanded_tensors_are_saved_and_loaded(tmp_path, write, read):
    saved = nn.Sequential(Expanded(), nn.Linear(3, 2))
    loaded = nn.Sequential(Expanded(), nn.Linear(3, 2))
    write(tmp_path / "a", saved)
    read(tmp_path / "a", loaded)
    assert same(weights(saved), weights(loaded))


@FORMATS
@pytest.mark.parametrize("kind", ["guide", "auto guide", "model alone"])
def test_what_is_saved_is_loaded_bit_by_bit(tmp_path, write, read, kind):
    pairs = [build(), build()]
    if kind == "auto guide":
        pairs = [(model, AutoNormal(model)) for model, _ in pairs]
        for _, guide in pairs:
            guide_checks.materialise(guide, (torch.randn(2, 3, 4),))
    modules = [pair[:1] if kind == "model alone" else pair for pair in pairs]
    assert not same(weights(*modules[0]), weights(*modules[1]))
    write(tmp_path / "a", *modules[0], name="α", epoch="3")
    assert read(tmp_path / "a", *modules[1]) == {"name": "α", "epoch": "3"}
    assert same(weights(*modules[0]), weights(*modules[1]))
    assert os.listdir(tmp_path) == ["a"]
    if kind != "guide":
        lazy = AutoNormal(pairs[1][0]) if kind == "auto guide" else pairs[1][1]
        refused(read, tmp_path / "a", (pairs[1][0], lazy), "guide: .*missing")


@FORMATS
@pytest.mark.parametrize("layer", [AnchoredAttention, SGPAttention, SparseCGPAttention])
def test_weights_of_a_version_without_the_mark_of_placed_inducing_inputs_count_as_placed(
    tmp_path, write, read, layer
):
    saved, loaded = (nn.Sequential(nn.Linear(4, 4), layer(4, 2)) for _ in range(2))
    del saved[1].is_placed
    write(tmp_path / "a", saved)
    read(tmp_path / "a", loaded)
    loaded[1].place(torch.randn(5, 4))
    after = loaded.state_dict()
    assert after.pop("1.is_placed") == 1
    assert same([after], weights(saved))


def test_extra_values_come_back_and_pytorch_reads_a_checkpoint_without_this_library(tmp_path):
    model, guide = build()
    large = torch.randn(10_000)
    few = {"step": 3, "list": [1, {"deep": torch.arange(3)}], "none": None}
    save(tmp_path / "a.pt", model, guide, **few, one=large, other=large)
    assert (tmp_path / "a.pt").stat().st_size < 60_000  # tensors that are shared are saved once
    for loaded in (
        load(tmp_path / "a.pt", model, guide),
        torch.load(tmp_path / "a.pt", weights_only=True)["extra"],
    ):
        assert torch.equal(loaded["list"][1].pop("deep"), torch.arange(3))
        assert torch.equal(loaded.pop("one"), loaded.pop("other"))
        assert loaded == {"step": 3, "list": [1, {}], "none": None}


def test_anybody_reads_safetensors_and_tensors_that_are_shared_or_lie_across_are_written(tmp_path):
    path, (model, guide) = tmp_path / "a.safetensors", build()
    save_safetensors(path, model, guide)
    plain = load_file(path)
    assert plain.keys() == {
        f"{part}.{n}" for part, m in (("model", model), ("guide", guide)) for n in m.state_dict()
    }
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["layers"])["0"]["heads"] == 2
    one, other = (
        nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3, bias=False)}) for _ in range(2)
    )
    one["b"].weight = one["a"].weight
    one["a"].weight.data = torch.randn(3, 3).T
    save_safetensors(path, one)
    load_safetensors(path, other)
    assert torch.equal(other["a"].weight, one["a"].weight)
    assert torch.equal(other["b"].weight, one["a"].weight)


class Malicious:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (os.mkdir, (str(self.marker),))


@pytest.mark.parametrize(
    "write", [lambda content, path: path.write_bytes(pickle.dumps(content)), torch.save]
)
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, write):
    path, marker = tmp_path / "a.pt", tmp_path / "was-run"
    write(
        {
            "format": checkpoint.FORMAT,
            "model": {},
            "guide": {},
            "layers": {},
            "extra": Malicious(marker),
        },
        path,
    )
    refused(load, path, build(), "damaged")
    assert not marker.exists()


@FORMATS
def test_a_file_that_is_cut_missing_or_of_another_program_is_refused(tmp_path, write, read):
    path, pair = tmp_path / "last", build()
    write(path, *build())
    complete = path.read_bytes()
    for length in (0, 30, len(complete) // 2, len(complete) - 1):
        path.write_bytes(complete[:length])
        refused(read, path, pair, "last is missing or damaged")
    refused(read, tmp_path / "none", pair, "missing")
    refused(read, tmp_path, pair, "missing")
    torch.save({"format": "other"}, path)
    refused(read, path, pair, "last is missing or damaged")
    save_file({"model.a": torch.zeros(2)}, path, metadata={"format": "pt"})
    refused(read, path, pair, "last is missing or damaged")


def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path):
    """Bits of the archive's own bookkeeping may change nothing that is read."""
    model, path = nn.Linear(3, 2), tmp_path / "a.pt"
    save(path, model, step=7)
    for content in accepted(path, checkpoint.read, error=CheckpointError, amount=60):
        assert same([content["model"]], weights(model))
        assert content["extra"] == {"step": 7}
    complete, bias = path.read_bytes(), model.bias.detach().numpy().tobytes()
    path.write_bytes(complete.replace(bias, bytes([bias[0] ^ 1]) + bias[1:]))
    refused(load, path, (model,), "damaged")


@FORMATS
@pytest.mark.parametrize(
    ("saved", "other", "words"),
    [
        (build, lambda: build(rank=1), r"0.log_scale \(2, 2\), here \(2, 1\)"),
        (build, lambda: build(prior="laplace"), "'prior': 'normal'.*, here .*'prior': 'laplace"),
        (build, lambda: build(family="diagonal"), "guide: u.raw_scale missing"),
        (
            lambda: (SoftmaxAttention(8, 2),),
            lambda: (SoftmaxAttention(8, 4),),
            "'heads': 2.*, here .*'heads': 4",
        ),
    ],
)
def test_another_architecture_is_refused_with_its_differences_also_of_the_same_shapes(
    tmp_path, write, read, saved, other, words
):
    write(tmp_path / "a", *saved())
    refused(read, tmp_path / "a", other(), words)


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    path, model = tmp_path / "a.pt", nn.Linear(2, 1)
    save(path, model, good=1)
    before = path.read_bytes()
    with pytest.raises(pickle.UnpicklingError):
        save(path, model, where=Path("x"))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.pt"]
