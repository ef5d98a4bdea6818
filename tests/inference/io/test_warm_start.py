"""Warm starts: weights that are carried over, the report, and sources that are refused."""

import json
from dataclasses import asdict

import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.inference import CheckpointError, WarmStart, save, warm_start
from probattn.inference.io import checkpoint


class Latent(SoftmaxAttention):
    """Softmax attention with one additional projection, as CGP attention has compared to kernel attention."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)
        self.latent = nn.Linear(dim, dim)


class Network(nn.Module):
    def __init__(self, attention=SoftmaxAttention, *, heads=2, depth=3, outputs=3, dim=4):
        super().__init__()
        self.blocks = nn.Sequential(*(attention(dim, heads) for _ in range(depth)))
        self.register_buffer("positions", torch.randn(5, dim))
        self.head = nn.Linear(dim, outputs)


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def file(tmp_path, model):
    save(tmp_path / "best.pt", model, epoch=1)
    return tmp_path / "best.pt"


@pytest.mark.parametrize("as_file", [True, False])
def test_weights_of_the_same_name_and_shape_are_carried_and_the_rest_stays(tmp_path, as_file):
    source, model = Network(depth=4), Network(Latent, outputs=5)
    before, theirs = state(model), state(source)
    report = warm_start(model, file(tmp_path, source) if as_file else source.state_dict())
    after = state(model)
    carried = {f"blocks.{n}.{name}" for n in range(3) for name in ("query_key_value.weight", "out.weight", "out.bias")}
    assert set(report.carried) == carried | {"positions"}
    assert set(report.fresh) == {f"blocks.{n}.latent.{name}" for n in range(3) for name in ("weight", "bias")}
    assert set(report.reshaped) == {"head.weight", "head.bias"}
    assert set(report.unused) == {name for name in theirs if name.startswith("blocks.3.")}
    for name, value in after.items():
        assert torch.equal(value, theirs[name] if name in report.carried else before[name]), name
        assert name not in report.carried or not torch.equal(value, before[name]), name
    assert state(source).keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in source.state_dict().items())


def test_the_same_architecture_is_carried_whole():
    source, model = Network(), Network()
    report = warm_start(model, source.state_dict())
    assert report == WarmStart(carried=tuple(state(model)), fresh=(), unused=(), reshaped=())
    assert all(torch.equal(value, state(source)[name]) for name, value in state(model).items())


def test_the_models_dtype_and_its_parameters_stay():
    source, model = Network().double(), Network()
    parameters = dict(model.named_parameters())
    warm_start(model, source.state_dict())
    assert dict(model.named_parameters()) == parameters
    assert all(parameter.requires_grad and parameter.dtype == torch.float32 for parameter in parameters.values())
    torch.testing.assert_close(model.head.weight, source.head.weight.float())


def refused(model, source, *words):
    before = state(model)
    with pytest.raises(CheckpointError) as caught:
        warm_start(model, source)
    assert all(torch.equal(value, before[name]) for name, value in state(model).items())
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_source_of_which_nothing_fits_is_refused(tmp_path):
    other = nn.Sequential(nn.Linear(4, 3))
    refused(Network(), file(tmp_path, other), "no weight in", str(tmp_path / "best.pt"), "*.weight", "head.weight")
    refused(Network(), {}, "no weight in the source", "head.weight")


def test_a_source_of_which_no_attention_fits_is_refused():
    """The head and the positions fit, and nobody would notice that the attention layers start afresh."""
    renamed = {name.replace("blocks", "layers"): value for name, value in Network().state_dict().items()}
    refused(
        Network(),
        renamed,
        "no matrix of the SoftmaxAttention layers",
        "3 carried over",
        "blocks.*.query_key_value.weight ×3",
        "layers.*.out.bias ×3",
    )


def test_biases_alone_are_no_attention_carried_over():
    """KEP-SVGP's output map has the bias of softmax's, and no other weight."""
    source = Network(lambda dim, heads: KEPSVGPAttention(dim, heads, rank=1))
    refused(Network(), source.state_dict(), "no matrix of the SoftmaxAttention layers", "blocks.*.out.weight ×3")


def test_each_kind_of_attention_layers_must_have_something():
    """The softmax block below fits, and the KEP-SVGP block above, which the start is for, would begin afresh."""
    source, model = Network(depth=2), Network(depth=2)
    model.blocks[1] = KEPSVGPAttention(4, 2, rank=1)
    refused(model, source.state_dict(), "no matrix of the KEPSVGPAttention layers", "blocks.*.query_key.weight")


def test_a_network_without_attention_layers_needs_none():
    source, model = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, outputs)) for outputs in (3, 2))
    report = warm_start(model, source.state_dict())
    assert (report.carried, report.reshaped) == (("0.weight", "0.bias"), ("1.weight", "1.bias"))


def test_a_layer_that_is_the_model_itself():
    source, model = SoftmaxAttention(4, 2), Latent(4, 2)
    assert len(warm_start(model, source.state_dict()).carried) == 3


def test_other_heads_are_refused(tmp_path):
    """The weights have the same shapes and mean something else."""
    refused(Network(heads=4), file(tmp_path, Network()), "layer blocks.0 has 2 heads, here 4")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_damaged_checkpoint_is_refused(tmp_path, share):
    path = file(tmp_path, Network())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    refused(Network(), path, "damaged", str(path))
    refused(Network(), tmp_path / "none.pt", "no checkpoint", "none.pt")


def test_the_report_counts_and_names_the_weights_of_all_layers_in_a_line():
    names = [f"blocks.{n}.mlp.{m}.weight" for n in range(30) for m in (0, 3)]
    report = WarmStart(carried=(*names, "v2.weight"), fresh=("blocks.0.latent.weight",), unused=(), reshaped=("head",))
    assert str(report).splitlines() == [
        "61 carried over",
        "  blocks.*.mlp.*.weight ×60",
        "  v2.weight",
        "1 fresh, not in the source",
        "  blocks.*.latent.weight",
        "1 fresh, of another shape in the source",
        "  head",
    ]


def test_the_report_goes_through_json():
    report = warm_start(Network(Latent), Network().state_dict())
    values = json.loads(json.dumps(asdict(report)))
    assert WarmStart(**{key: tuple(value) for key, value in values.items()}) == report
    assert len(report.carried) == 12


def test_what_was_started_can_be_saved_and_read(tmp_path):
    source, model = Network(), Network(Latent)
    warm_start(model, source.state_dict())
    saved = checkpoint.read(file(tmp_path, model))["model"]
    assert torch.equal(saved["blocks.1.out.weight"], source.blocks[1].out.weight)
