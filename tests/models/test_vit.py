"""The vision transformer against slicing loops and plain torch."""

import math

import pytest
import torch
import torch.nn.functional as F
from elbos import TraceMeanField_ELBO
from torch import nn
from torch.testing import assert_close

from probattn import CGPAttention, KEPSVGPAttention, SGPAttention, SoftmaxAttention, draws, guides
from probattn.models import Classifier, TextTransformer, ViT, last
from probattn.models.blocks import Block
from probattn.models.vit import patches

F64 = torch.float64
SIZES = {"image_size": 4, "patch_size": 2, "channels": 3, "classes": 5, "dim": 8, "heads": 2, "mlp_dim": 16}
STOCHASTIC = KEPSVGPAttention.partial(rank=2)


def test_patches_are_slices_row_by_row():
    images = torch.randn(2, 3, 4, 6, dtype=F64)
    actual = patches(images, 2)
    assert actual.shape == (2, 6, 12)
    for b in range(2):
        for row in range(2):
            for column in range(3):
                block = images[b, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
                assert torch.equal(actual[b, 3 * row + column], block.flatten())


def test_forward_equals_plain_torch_from_its_state_dict():
    vit = ViT(**SIZES, depth=2).double().eval()
    for parameter in vit.parameters():
        nn.init.normal_(parameter, std=0.3)
    state = vit.state_dict()
    images = torch.randn(3, 3, 4, 4, dtype=F64)

    def linear(x, name):
        return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    tokens = [images[:, :, i : i + 2, j : j + 2].flatten(1) for i in (0, 2) for j in (0, 2)]
    x = linear(torch.stack(tokens, dim=1), "embed") + state["positions"]
    for block in ("blocks.0", "blocks.1"):
        q, k, v = linear(norm(x, f"{block}.norm_attention"), f"{block}.attention.query_key_value").chunk(3, dim=-1)
        heads = []
        for h in (slice(0, 4), slice(4, 8)):
            weights = (q[..., h] @ k[..., h].mT / 4**0.5).softmax(-1)
            heads.append(weights @ v[..., h])
        x = x + linear(torch.cat(heads, dim=-1), f"{block}.attention.out")
        hidden = F.gelu(linear(norm(x, f"{block}.norm_mlp"), f"{block}.mlp.0"))
        x = x + linear(hidden, f"{block}.mlp.3")
    expected = linear(norm(x.mean(1), "norm"), "head")
    torch.testing.assert_close(vit(images), expected)


def test_dropout_acts_in_training_and_not_in_evaluation():
    vit = ViT(**SIZES, depth=1, dropout=0.5)
    images = torch.randn(2, 3, 4, 4)
    assert not torch.equal(vit(images), vit(images))
    vit.eval()
    assert torch.equal(vit(images), vit(images))


@pytest.mark.parametrize("rate", [math.nan, -0.1, 1.0, math.inf])
def test_a_dropout_rate_out_of_bounds_is_refused(rate):
    """``nn.Dropout`` accepts NaN."""
    builds = (
        lambda: ViT(**SIZES, depth=1, dropout=rate),
        lambda: TextTransformer(
            nn.Linear(2, 4), max_length=3, classes=2, dim=4, depth=1, heads=2, mlp_dim=4, dropout=rate
        ),
        lambda: Block(4, 2, mlp_dim=4, dropout=rate, attention=SoftmaxAttention),
    )
    for build in builds:
        with pytest.raises(ValueError, match=rf"a dropout rate lies in \[0, 1\), got {rate}"):
            build()


def test_draws_appear_at_the_first_stochastic_layer_and_layers_below_run_once():
    vit = ViT(**SIZES, depth=4, attention=last(2, STOCHASTIC, of=4))
    seen = []
    for name in ("embed", "blocks.0", "blocks.1", "blocks.2.norm_attention", "blocks.2.attention", "blocks.3", "head"):
        vit.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, name=name: seen.append((name, tuple(inputs[0].shape), tuple(output.shape)))
        )
    with draws(7):
        assert vit(torch.randn(2, 3, 4, 4)).shape == (7, 2, 5)
    below, above = (2, 4, 8), (7, 2, 4, 8)
    assert seen == [
        ("embed", (2, 4, 12), below),
        ("blocks.0", below, below),
        ("blocks.1", below, below),
        ("blocks.2.norm_attention", below, below),
        ("blocks.2.attention", below, above),
        ("blocks.3", above, above),
        ("head", (7, 2, 8), (7, 2, 5)),
    ]


def test_last_puts_the_layer_into_the_top_blocks():
    for number in range(4):
        vit = ViT(**SIZES, depth=3, attention=last(number, STOCHASTIC, of=3))
        kinds = [type(block.attention) for block in vit.blocks]
        assert kinds == [SoftmaxAttention] * (3 - number) + [KEPSVGPAttention] * number
    rest = KEPSVGPAttention.partial(rank=1)
    vit = ViT(**SIZES, depth=2, attention=last(1, STOCHASTIC, of=2, rest=rest))
    assert [block.attention.rank for block in vit.blocks] == [1, 2]


@pytest.mark.parametrize("number", [-1, 4])
def test_last_refuses_more_blocks_than_there_are(number):
    with pytest.raises(ValueError, match=f"last {number} of 3"):
        last(number, STOCHASTIC, of=3)


def test_each_block_has_its_own_layer_with_its_path_as_its_name():
    vit = ViT(**SIZES, depth=2, attention=STOCHASTIC)
    first, second = (block.attention for block in vit.blocks)
    assert first is not second
    assert [first.name, second.name] == ["blocks.0.attention", "blocks.1.attention"]


def test_another_number_of_factories_than_blocks_is_refused():
    with pytest.raises(ValueError, match="1 attention factories for 2 blocks"):
        ViT(**SIZES, depth=2, attention=[STOCHASTIC])


def test_a_patch_size_that_does_not_divide_the_image_is_refused():
    with pytest.raises(ValueError, match="patch_size 3 does not divide image_size 4"):
        ViT(**(SIZES | {"patch_size": 3}), depth=1)


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (2, 3, 8, 8), (2, 3, 4, 5), (3, 4, 4), (2, 4, 4, 3)])
def test_images_of_another_shape_are_refused_with_both_shapes(shape):
    with pytest.raises(ValueError, match=r"takes images .*3, 4, 4.*got " + str(shape).replace("(", r"\(")[:-1]):
        ViT(**SIZES, depth=1)(torch.randn(shape))


def test_every_parameter_gets_a_gradient_from_the_elbo():
    model = Classifier(ViT(**SIZES, depth=2, attention=last(1, STOCHASTIC, of=2)), num_data=10)
    guide = guides.for_model(model)
    TraceMeanField_ELBO()(model, guide)(torch.randn(2, 3, 4, 4), torch.tensor([0, 3])).backward()
    parameters = [*model.named_parameters(), *guide.named_parameters()]
    assert [name for name, p in parameters if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_a_block_is_its_two_halves():
    block = ViT(**SIZES, depth=1).double().eval().blocks[0]
    x = torch.randn(2, 4, 8, dtype=F64)
    middle = x + block.attention(block.norm_attention(x))
    torch.testing.assert_close(block(x), middle + block.mlp(block.norm_mlp(middle)))


def test_every_parameter_gets_a_gradient_with_inducing_inputs_that_are_carried():
    attention = last(2, SGPAttention.partial(inducing=3), of=3)
    model = Classifier(ViT(**SIZES, depth=3, attention=attention), num_data=10)
    model.network.initialise_inducing(torch.randn(4, 3, 4, 4))
    guide = guides.for_model(model)
    with draws("example"):
        TraceMeanField_ELBO()(model, guide)(torch.randn(2, 3, 4, 4), torch.tensor([0, 3])).backward()
    parameters = [*model.named_parameters(), *guide.named_parameters()]
    assert [name for name, p in parameters if p.grad is None or not p.grad.abs().sum() > 0] == []
    assert all(p.grad.isfinite().all() for _, p in parameters)


def test_initialise_inducing_changes_nothing_where_no_layer_has_inducing_inputs():
    vit = ViT(**SIZES, depth=2, attention=last(1, STOCHASTIC, of=2))
    before = {name: p.clone() for name, p in vit.state_dict().items()}
    vit.initialise_inducing(torch.randn(2, 3, 4, 4))
    assert all(torch.equal(p, before[name]) for name, p in vit.state_dict().items())


def test_inducing_inputs_follow_a_path_whose_modules_and_layers_may_be_replaced():
    torch.manual_seed(0)
    shape = {"image_size": 8, "patch_size": 4, "channels": 1, "classes": 2, "dim": 8, "heads": 2, "mlp_dim": 8}
    network = ViT(**shape, depth=2, attention=SGPAttention.partial(inducing=3))
    network.blocks[1].norm_attention = torch.nn.RMSNorm(8)
    layer = network.blocks[1].attention
    expected = network.blocks[1].norm_attention(network.blocks[0].feed_forward_without_dropout(layer.form.inducing))
    weight = layer.query_value.weight[:8].unflatten(0, (2, 4))
    assert_close(layer.inducing_points(), expected @ weight.mT)
    network.blocks[1].attention = SGPAttention(8, 2, inducing=3)
    network.blocks.connect_inducing_inputs()
    assert_close(
        network.blocks[1].attention.inducing_points(),
        network.blocks[1].norm_attention(
            network.blocks[0].feed_forward_without_dropout(network.blocks[1].attention.form.inducing)
        )
        @ network.blocks[1].attention.query_value.weight[:8].unflatten(0, (2, 4)).mT,
    )


def test_training_dropout_leaves_inducing_inputs_whole():
    """Values and gradients in training are those of evaluation, where nothing is dropped; the tokens still are."""
    torch.manual_seed(0)
    network = ViT(**SIZES, depth=2, dropout=0.5, attention=SGPAttention.partial(inducing=3))
    layer, found = network.blocks[1].attention, {}
    for mode in (True, True, False):
        network.train(mode).zero_grad()
        points = layer.inducing_points()
        points.square().sum().backward()
        below = network.blocks[0].mlp[0].weight.grad
        found.setdefault(mode, []).append((points.detach(), below.clone()))
    (first, second), (expected,) = found[True], found[False]
    assert expected[1].abs().sum() > 0
    for each in (first, second):
        assert_close(each, expected, rtol=0, atol=0)
    tokens = torch.randn(2, 4, SIZES["dim"])
    block = network.blocks[0].train()
    whole = block.feed_forward_without_dropout(tokens)
    assert not torch.equal(block.mlp(block.norm_mlp(tokens)), block.mlp(block.norm_mlp(tokens)))
    block.eval()
    assert_close(whole, tokens + block.mlp(block.norm_mlp(tokens)), rtol=0, atol=0)


def test_plain_modules_may_stand_in_for_attention():
    shape = {"image_size": 8, "patch_size": 4, "channels": 1, "classes": 2, "dim": 8, "heads": 2, "mlp_dim": 8}
    network = ViT(**shape, depth=2, attention=lambda dim, heads: torch.nn.Identity())
    images = torch.randn(3, 1, 8, 8)
    network.initialise_inducing(images)
    assert network(images).shape == (3, 2)


def test_inducing_inputs_are_taken_from_streams_without_noise():
    """Layers below are at the means of their posteriors: two runs with one seed for the choice give one stream."""
    torch.manual_seed(0)
    shape = {"image_size": 8, "patch_size": 2, "channels": 1, "classes": 2, "dim": 8, "heads": 2, "mlp_dim": 8}
    network = ViT(**shape, depth=2, attention=[CGPAttention, SGPAttention.partial(inducing=3)]).eval()
    seen = []
    network.blocks[1].attention.initialise = lambda stream: seen.append(stream.clone())
    for seed in (1, 2):
        torch.manual_seed(seed)
        network.initialise_inducing(torch.ones(2, 1, 8, 8))
    assert_close(seen[0], seen[1], rtol=0, atol=0)


def test_a_standardised_network_ignores_brightness_and_contrast():
    torch.manual_seed(0)
    vit = ViT(**SIZES, depth=1, standardise=True).double().eval()
    images = torch.rand(3, 3, 4, 4, dtype=F64)
    assert_close(vit(0.3 * images + 0.5), vit(images), rtol=0, atol=2e-3)
    plain = ViT(**SIZES, depth=1).double().eval()
    plain.load_state_dict(vit.state_dict())
    shifted = images - images.mean((1, 2, 3), keepdim=True)
    scaled = shifted / (shifted.square().mean((1, 2, 3), keepdim=True) + 1e-5).sqrt()
    assert_close(plain(scaled), vit(images))
