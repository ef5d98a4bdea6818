"""Warm starts: weights that are carried over, and sources that are refused."""

import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, SGPAttention, SoftmaxAttention
from probattn.inference import CheckpointError, save, warm_start


class Latent(SoftmaxAttention):
    """Softmax attention with one additional projection, as CGP attention has compared to kernel
    attention."""

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
    carried = {
        f"blocks.{n}.{name}"
        for n in range(3)
        for name in ("query_key_value.weight", "out.weight", "out.bias")
    }
    assert set(report["carried"]) == carried | {"positions"}
    reshaped = {"head.weight", "head.bias"}
    new = {f"blocks.{n}.latent.{name}" for n in range(3) for name in ("weight", "bias")}
    assert set(report["fresh"]) == new | reshaped
    assert (
        set(report["unused"])
        == {name for name in theirs if name.startswith("blocks.3.")} | reshaped
    )
    for name, value in state(model).items():
        assert torch.equal(value, theirs[name] if name in report["carried"] else before[name]), name


def test_the_models_dtype_and_its_parameters_stay():
    source, model = Network().double(), Network()
    parameters = dict(model.named_parameters())
    report = warm_start(model, source.state_dict())
    assert report == {"carried": list(state(model)), "fresh": [], "unused": []}
    assert dict(model.named_parameters()) == parameters
    assert all(
        parameter.requires_grad and parameter.dtype == torch.float32
        for parameter in parameters.values()
    )
    torch.testing.assert_close(model.head.weight, source.head.weight.float())


@pytest.mark.parametrize(("inducing", "is_placed"), [(3, True), (2, False)])
def test_inducing_inputs_that_are_not_carried_are_still_to_be_placed(inducing, is_placed):
    source, model = (SGPAttention(4, 2, inducing=number) for number in (3, inducing))
    source.place(torch.randn(5, 4))
    report = warm_start(model, source.state_dict())
    assert bool(model.is_placed) == is_placed
    assert ("is_placed" in report["carried"]) == is_placed


def refused(model, source, *words):
    before = state(model)
    with pytest.raises(CheckpointError) as caught:
        warm_start(model, source)
    assert all(torch.equal(value, before[name]) for name, value in state(model).items())
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_source_of_which_nothing_or_no_attention_fits_is_refused():
    """If the head and the positions fit, nobody would notice that the attention layers start
    afresh."""
    refused(nn.Linear(2, 3), {}, "model")
    renamed = {
        name.replace("blocks", "layers"): value for name, value in Network().state_dict().items()
    }
    refused(Network(), renamed, "SoftmaxAttention")
    # KEP-SVGP's output map has the bias of softmax's, and no other weight.
    refused(Network(), Network(KEPSVGPAttention.partial(rank=1)).state_dict(), "SoftmaxAttention")
    # The softmax block below fits; the KEP-SVGP block above, which the start is for, would begin
    # afresh.
    source, model = Network(depth=2), Network(depth=2)
    model.blocks[1] = KEPSVGPAttention(4, 2, rank=1)
    refused(model, source.state_dict(), "KEPSVGPAttention")


def test_a_network_without_attention_layers_needs_none_and_a_layer_may_be_the_model():
    source, model = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, outputs)) for outputs in (3, 2))
    report = warm_start(model, source.state_dict())
    assert (report["carried"], report["fresh"]) == (["0.weight", "0.bias"], ["1.weight", "1.bias"])
    assert len(warm_start(Latent(4, 2), SoftmaxAttention(4, 2).state_dict())["carried"]) == 3


def test_other_heads_and_a_damaged_checkpoint_are_refused(tmp_path):
    """With other heads the weights have the same shapes and mean something else."""
    path = file(tmp_path, Network())
    refused(Network(heads=4), path, "layer blocks.0", "2 heads, here 4")
    path.write_bytes(path.read_bytes()[:-99])
    refused(Network(), path, "damaged", str(path))
