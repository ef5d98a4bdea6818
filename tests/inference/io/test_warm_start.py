"""Warm starts: weights that are carried over, and sources that are refused."""

import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.inference import CheckpointError, save, warm_start
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
    assert set(report["carried"]) == carried | {"positions"}
    reshaped = {"head.weight", "head.bias"}
    new = {f"blocks.{n}.latent.{name}" for n in range(3) for name in ("weight", "bias")}
    assert set(report["fresh"]) == new | reshaped
    assert set(report["unused"]) == {name for name in theirs if name.startswith("blocks.3.")} | reshaped
    for name, value in after.items():
        assert torch.equal(value, theirs[name] if name in report["carried"] else before[name]), name
        assert name not in report["carried"] or not torch.equal(value, before[name]), name
    assert state(source).keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in source.state_dict().items())


def test_the_same_architecture_is_carried_whole():
    source, model = Network(), Network()
    report = warm_start(model, source.state_dict())
    assert report == {"carried": list(state(model)), "fresh": [], "unused": []}
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
    refused(Network(), file(tmp_path, other), "SoftmaxAttention")
    refused(nn.Linear(2, 3), {}, "no matrix", "model")


def test_a_source_of_which_no_attention_fits_is_refused():
    """The head and the positions fit, and nobody would notice that the attention layers start afresh."""
    renamed = {name.replace("blocks", "layers"): value for name, value in Network().state_dict().items()}
    refused(Network(), renamed, "no matrix", "SoftmaxAttention")


def test_biases_alone_are_no_attention_carried_over():
    """KEP-SVGP's output map has the bias of softmax's, and no other weight."""
    source = Network(lambda dim, heads: KEPSVGPAttention(dim, heads, rank=1))
    refused(Network(), source.state_dict(), "no matrix", "SoftmaxAttention")


def test_each_kind_of_attention_layers_must_have_something():
    """The softmax block below fits, and the KEP-SVGP block above, which the start is for, would begin afresh."""
    source, model = Network(depth=2), Network(depth=2)
    model.blocks[1] = KEPSVGPAttention(4, 2, rank=1)
    refused(model, source.state_dict(), "no matrix", "KEPSVGPAttention")


def test_a_network_without_attention_layers_needs_none():
    source, model = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, outputs)) for outputs in (3, 2))
    report = warm_start(model, source.state_dict())
    assert (report["carried"], report["fresh"]) == (["0.weight", "0.bias"], ["1.weight", "1.bias"])


def test_a_layer_that_is_the_model_itself():
    source, model = SoftmaxAttention(4, 2), Latent(4, 2)
    assert len(warm_start(model, source.state_dict())["carried"]) == 3


def test_other_heads_are_refused(tmp_path):
    """The weights have the same shapes and mean something else."""
    refused(Network(heads=4), file(tmp_path, Network()), "layer blocks.0", "2 heads, here 4")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_damaged_checkpoint_is_refused(tmp_path, share):
    path = file(tmp_path, Network())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    refused(Network(), path, "damaged", str(path))
    refused(Network(), tmp_path / "none.pt", "missing", "none.pt")


def test_what_was_started_can_be_saved_and_read(tmp_path):
    source, model = Network(), Network(Latent)
    warm_start(model, source.state_dict())
    saved = checkpoint.read(file(tmp_path, model))["model"]
    assert torch.equal(saved["blocks.1.out.weight"], source.blocks[1].out.weight)
