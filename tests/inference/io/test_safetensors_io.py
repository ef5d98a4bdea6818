"""Weights as safetensors: what is written is read, by others too, whole or not at all."""

import json
import os
import shutil

import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.inference import CheckpointError, load_safetensors, save_safetensors
from probattn.inference.objective import guide_checks
from probattn.models import Classifier, ViT

SHAPE = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 2, "dim": 4, "depth": 1, "mlp_dim": 4}


def build(rank=2, heads=2):
    network = ViT(**SHAPE, heads=heads, attention=KEPSVGPAttention.partial(rank=rank))
    model = Classifier(network, num_data=5)
    return model, guides.for_model(model)


def weights(*modules):
    return [value.clone() for module in modules for value in module.state_dict().values()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_what_is_written_is_read_bit_by_bit_and_by_anybody(tmp_path):
    path = tmp_path / "a.safetensors"
    first, second = build(), build()
    assert not same(weights(*first), weights(*second))
    save_safetensors(path, *first, name="α", epoch="3")
    assert load_safetensors(path, *second) == {"name": "α", "epoch": "3"}
    assert same(weights(*first), weights(*second))
    assert [each.name for each in tmp_path.iterdir()] == ["a.safetensors"]
    plain = load_file(path)
    assert set(plain) == {
        f"{part}.{name}" for part, module in zip(("model", "guide"), first, strict=True) for name in module.state_dict()
    }
    assert torch.equal(
        plain["guide.network.blocks.0.attention.u.loc"], first[1].get_submodule("network.blocks.0.attention.u").loc
    )
    with safe_open(path, framework="pt") as file:
        layers = json.loads(file.metadata()["layers"])
    assert layers["network.blocks.0.attention"]["heads"] == 2


def test_auto_guides_and_the_model_alone(tmp_path):
    path, x = tmp_path / "a.safetensors", torch.randn(3, 1, 4, 4)
    pairs = []
    for _ in range(2):
        model, _ = build()
        guide = AutoNormal(model)
        guide_checks.materialise(guide, (x, torch.zeros(3)))
        pairs.append((model, guide))
    save_safetensors(path, *pairs[0])
    load_safetensors(path, *pairs[1])
    assert same(weights(*pairs[0]), weights(*pairs[1]))
    save_safetensors(path, pairs[0][0])
    other = build()
    load_safetensors(path, other[0])
    assert same(weights(pairs[0][0]), weights(other[0]))
    with pytest.raises(CheckpointError, match="guide: .* missing, here"):
        load_safetensors(path, *other)


def test_tensors_that_are_shared_or_lie_across(tmp_path):
    first, second = (nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3, bias=False)}) for _ in range(2))
    first["b"].weight = first["a"].weight
    first["a"].weight.data = torch.randn(3, 3).T
    save_safetensors(tmp_path / "a.safetensors", first)
    load_safetensors(tmp_path / "a.safetensors", second)
    assert torch.equal(second["a"].weight, first["a"].weight)
    assert torch.equal(second["b"].weight, first["a"].weight)


def test_another_architecture_is_named_and_changes_nothing(tmp_path):
    path = tmp_path / "a.safetensors"
    save_safetensors(path, *build())
    for other, words in (
        (build(rank=1), r"another architecture; build the model with its settings:\n"),
        (build(heads=1), r"layer network.blocks.0.attention: .*'heads': 2.*, here .*'heads': 1"),
        ((SoftmaxAttention(4, 2), None), "model: .* here missing"),
    ):
        modules = [module for module in other if module is not None]
        before = weights(*modules)
        with pytest.raises(CheckpointError, match=words):
            load_safetensors(path, *other)
        assert same(before, weights(*modules))


def test_no_file_a_damaged_one_and_one_of_others(tmp_path):
    path, other = tmp_path / "a.safetensors", build()
    before = weights(*other)
    with pytest.raises(CheckpointError, match="missing"):
        load_safetensors(path, *other)
    save_safetensors(path, *build())
    whole = path.read_bytes()
    for number, content in enumerate((b"", whole[:7], whole[:200], whole[:-1], b"\xff" * 100)):
        broken = tmp_path / f"{number}.safetensors"
        broken.write_bytes(content)
        with pytest.raises(CheckpointError, match=rf"{number}\.safetensors is damaged"):
            load_safetensors(broken, *other)
    save_file({"model.a": torch.zeros(2)}, tmp_path / "b.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"b\.safetensors is damaged"):
        load_safetensors(tmp_path / "b.safetensors", *other)
    assert same(before, weights(*other))


def test_a_failure_midway_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    save_safetensors(path, *build())
    kept = shutil.copy(path, tmp_path / "kept").read_bytes()

    def fail(file):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left on device"):
            save_safetensors(path, *build())
    assert path.read_bytes() == kept
    assert {each.name for each in tmp_path.iterdir()} == {"a.safetensors", "kept"}
