"""The sparse layer alone: its inducing inputs, and no matrix over pairs of tokens."""

import pytest
import torch
from elbos import Trace_ELBO
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

DIM, HEADS, TOKENS = 6, 2, 5
GUIDES = ["posterior", "prior", "learned"]
COLLAPSED = pytest.mark.parametrize("collapsed", [True, False], ids=["collapsed", "through z_o"])
MASK = torch.tensor([[True] * 5, [True, False, True, True, False], [False, True, False, False, False]])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("guide", GUIDES)
def test_mixtures_of_tokens_as_inducing_inputs(sparse, guide):
    layer, x = sparse.make(canonical_guide=guide, regulariser_norm="example", tokens=TOKENS), randn(2, TOKENS, DIM)
    output, r = layer(x), sparse.r_of(layer, x)
    for b, _, heads in sparse.loops(layer, x):
        assert_close(output[b], layer.out(torch.cat([head.nu for head in heads], dim=-1)))
        assert_close(r[b], sum(head.bound(guide) for head in heads))
    for at, mask in ((x[:, :4], None), (x, MASK[:2])):
        with pytest.raises(ValueError, match="leave tokens out where the length varies"):
            layer(at, mask)


def test_inducing_inputs_start_at_latent_inputs_of_vectors_seen(sparse):
    """Of all tokens of the stream, carried along the path, other ones for each head; moved a little."""
    layer, x = sparse.make(inducing=3, inducing_keys=40), randn(2, 9, DIM)
    before = [points.clone() for points in layer.inducing]
    norm = torch.nn.LayerNorm(DIM).double()
    layer.follow(norm)
    torch.manual_seed(0)
    layer.initialise(x)
    latent = layer.latent(norm(x)).flatten(0, 1).unflatten(-1, (HEADS, -1)).detach()
    for points, old, number in zip(layer.inducing, before, (3, 40), strict=True):
        assert points.shape == old.shape == (HEADS, number, DIM // HEADS)
        nearest = [torch.cdist(points[h].detach(), latent[:, h]).min(-1) for h in range(HEADS)]
        assert max(distance.max() for distance, _ in nearest) < 5e-2 * latent.std()
        assert len(nearest[0].indices.unique()) == min(number, 18)
        assert (nearest[0].indices != nearest[1].indices).any()
    mixing = sparse.make(tokens=9)
    before = [mixture.clone() for mixture in mixing.inducing]
    mixing.initialise(x)
    assert_close(list(mixing.inducing), before)


class NoSquare(TorchDispatchMode):
    """Fails where an operation, in the backward pass too, makes a tensor with N rows and N columns, or N² entries."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens, self.seen = tokens, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, torch.Tensor):
                self.seen += 1
                long = sum(size >= self.tokens for size in tensor.shape)
                fine = long < 2 and tensor.numel() < self.tokens**2
                assert fine, f"{function} made {tuple(tensor.shape)}"
        return output


@COLLAPSED
@pytest.mark.parametrize("guide", GUIDES)
def test_nothing_is_quadratic_in_the_number_of_tokens(sparse, guide, collapsed):
    torch.manual_seed(0)
    layer = sparse.layer(8, 2, inducing=8, canonical_guide=guide, collapsed=collapsed)
    x, mask = torch.randn(1, 4096, 8), torch.arange(4096).unsqueeze(0) < 4000
    with NoSquare(4096) as watch:
        sparse.loss_of(Trace_ELBO, layer, x, mask).backward()
        layer(x, mask).square().mean().backward()
    assert watch.seen > 500


@pytest.mark.parametrize("options", [{"inducing_keys": None}, {"inducing": 7}], ids=str)
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_any_number_of_inducing_inputs_is_loops_over_examples_and_heads(sparse, layer_is_loops, options, mask):
    layer_is_loops(sparse, options, randn(3, TOKENS, DIM), mask)


@pytest.mark.parametrize("option", ["inducing", "inducing_keys"])
def test_no_inducing_inputs_are_refused(sparse, option):
    with pytest.raises(ValueError, match="inducing and inducing_keys must be positive"):
        sparse.make(**{option: 0})
