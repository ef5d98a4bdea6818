"""Inducing inputs of SGPA in a network: the path of the residual stream, initialisation, copies."""

import copy

import pytest
import torch
from sampling import randn
from small_vit import small_vit
from torch.testing import assert_close

from probattn import KEPSVGPAttention, SGPAttention
from probattn.models import last

STOCHASTIC = SGPAttention.partial(inducing=3)


def vit(depth=3, attention=STOCHASTIC, **options):
    torch.manual_seed(0)
    network = small_vit(attention, dim=6, depth=depth, **options).double()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "norm" in name:
                parameter += 0.3 * torch.randn_like(parameter)
    return network


def norm(x, module):
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.weight
        + module.bias
    )


def carried(network, i):
    """β of layer i by hand: the MLP half of the block below, this block's norm, then W_q of each
    head."""
    beta, layer = network.blocks[i].attention.form.inducing, network.blocks[i].attention
    if i > 0:
        below = network.blocks[i - 1]
        first, second = below.mlp[0], below.mlp[3]
        hidden = norm(beta, below.norm_mlp) @ first.weight.T + first.bias
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
        beta = beta + hidden @ second.weight.T + second.bias
    beta = norm(beta, network.blocks[i].norm_attention)
    return torch.stack([beta[h] @ layer.query_value.weight[3 * h : 3 * h + 3].T for h in range(2)])


@pytest.mark.parametrize("top", [3, 1])
def test_inducing_inputs_pass_through_the_block_below_and_this_blocks_norm(top):
    """Path without dropout in training, also after a norm has been replaced."""
    network = vit(attention=last(top, STOCHASTIC, of=3), dropout=0.5).train()
    replaced = network.blocks[2].norm_attention = copy.deepcopy(network.blocks[2].norm_attention)
    torch.nn.init.normal_(replaced.weight)
    for i in range(3 - top, 3):
        points = network.blocks[i].attention.inducing_points()
        assert_close(points, carried(network, i))
        gradients = torch.autograd.grad(
            points.square().sum(), list(network.parameters()), allow_unused=True
        )
        named = zip(dict(network.named_parameters()), gradients, strict=True)
        reached = {
            name for name, gradient in named if gradient is not None and gradient.abs().sum() > 0
        }
        own = {f"blocks.{i}.attention.form.inducing", f"blocks.{i}.attention.query_value.weight"}
        own |= {f"blocks.{i}.norm_attention.{part}" for part in ("weight", "bias")}
        if i > 0:
            parts = ("norm_mlp", "mlp.0", "mlp.3")
            own |= {
                f"blocks.{i - 1}.{part}.{kind}" for part in parts for kind in ("weight", "bias")
            }
        assert reached == own


@pytest.mark.parametrize(
    ("training", "lower"),
    [(False, SGPAttention.partial(inducing=9)), (True, KEPSVGPAttention.partial(rank=2))],
)
def test_initialise_inducing_takes_vectors_of_the_stream(lower, training):
    """Each inducing input is near one token's vector at that place, with draws in the layers below,
    and no dropout."""
    network = vit(attention=[lower, STOCHASTIC, SGPAttention.partial(inducing=5)], dropout=0.5)
    network.train(training)
    images, streams = randn(3, 1, 4, 4), [None, None, None]
    for i in (1, 2):
        network.blocks[i - 1].norm_mlp.register_forward_pre_hook(
            lambda module, inputs, i=i: (
                streams.__setitem__(i, inputs[0]) if inputs[0].shape[-2] == 4 else None
            )
        )
    before = {
        name: p.clone()
        for name, p in network.named_parameters()
        if not name.endswith("form.inducing")
    }
    network.initialise_inducing(images)
    assert all(module.training is training for module in network.modules())
    assert all(
        torch.equal(p, before[name]) for name, p in network.named_parameters() if name in before
    )
    network.eval()
    streams[0] = network.tokens(images)
    for i, block in enumerate(network.blocks):
        if not isinstance(block.attention, SGPAttention):
            continue
        vectors, rows = block.attention.form.inducing.detach(), streams[i].detach().reshape(-1, 6)
        distance = (vectors.unsqueeze(-2) - rows).abs().amax(-1)
        assert distance.amin(-1).max() < 6e-2 * rows.std()
        picked = distance.argmin(-1)
        assert all(len(head.unique()) == block.attention.inducing for head in picked)
        assert not torch.equal(picked[0].sort().values, picked[1].sort().values) or i == 0
        assert vectors.requires_grad is False
        assert block.attention.form.inducing.requires_grad


def test_the_standard_form_has_nothing_to_initialise():
    layer = SGPAttention(6, 2, inducing=None)
    before = copy.deepcopy(layer.state_dict())
    layer.initialise(torch.randn(5, 6))
    assert_close(layer.state_dict(), before)


def test_deep_copies_keep_the_path_inside_the_copy():
    network = vit()
    copied = copy.deepcopy(network)
    assert list(copied.state_dict()) == list(network.state_dict())
    assert not any("path" in name for name in network.state_dict())
    points = copied.blocks[2].attention.inducing_points
    before = points().detach()
    with torch.no_grad():
        network.blocks[1].mlp[0].weight.mul_(3)
        assert torch.equal(points(), before)
        copied.blocks[1].mlp[0].weight.mul_(3)
        assert not torch.equal(points(), before)
