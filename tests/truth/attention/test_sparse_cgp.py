"""The sparse correlated-GP layer alone: its inducing inputs, and no matrix over pairs of tokens."""

import pytest
import torch
from correlated_reference import DIM, GUIDES, HEADS, MASK, TOKENS, Sparse, loss_of
from elbos import Trace_ELBO
from sampling import randn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode


def test_a_fixed_number_of_tokens_is_checked():
    layer, x = Sparse().make(tokens=TOKENS), randn(3, TOKENS, DIM)
    for tokens, mask in ((x[:, :4], None), (x, MASK)):
        with pytest.raises(ValueError, match="where the length varies"):
            layer(tokens, mask)


def test_inducing_inputs_start_at_latent_inputs_of_vectors_seen():
    """Of all tokens of the stream, carried along the path, other ones for each head; moved a
    little."""
    layer, x = Sparse().make(inducing=3, inducing_keys=40), randn(2, 9, DIM)
    norm = torch.nn.LayerNorm(DIM).double()
    layer.follow(norm)
    layer.initialise(x)
    latent = layer.latent(norm(x)).flatten(0, 1).unflatten(-1, (HEADS, -1)).detach()
    for points, number in zip(layer.inducing, (3, 40), strict=True):
        assert points.shape == (HEADS, number, DIM // HEADS)
        nearest = [torch.cdist(points[h].detach(), latent[:, h]).min(-1) for h in range(HEADS)]
        assert max(distance.max() for distance, _ in nearest) < 5e-2 * latent.std()
        assert len(nearest[0].indices.unique()) == min(number, 18)
        assert (nearest[0].indices != nearest[1].indices).any()
    mixing = Sparse().make(tokens=9)
    before = [mixture.clone() for mixture in mixing.inducing]
    mixing.initialise(x)
    assert_close(list(mixing.inducing), before)


class NoSquare(TorchDispatchMode):
    """Fails where an operation, in the backward pass too, makes a tensor with N rows and N columns,
    or N² entries."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens, self.seen = tokens, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in filter(
            torch.is_tensor, output if isinstance(output, (tuple, list)) else (output,)
        ):
            self.seen += 1
            is_square = (
                sum(size >= self.tokens for size in tensor.shape) > 1
                or tensor.numel() >= self.tokens**2
            )
            assert not is_square, f"{function} made {tuple(tensor.shape)}"
        return output


@pytest.mark.parametrize("collapsed", [True, False], ids=["collapsed", "through z_o"])
@pytest.mark.parametrize("guide", GUIDES)
def test_nothing_is_quadratic_in_the_number_of_tokens(guide, collapsed):
    layer = Sparse().layer(8, 2, inducing=8, canonical_guide=guide, collapsed=collapsed)
    x, mask = torch.randn(1, 1024, 8), torch.arange(1024).unsqueeze(0) < 1000
    with NoSquare(1024) as watch:
        loss_of(Trace_ELBO, layer, x, mask).backward()
        layer(x, mask).square().mean().backward()
    assert watch.seen > 500
    with NoSquare(8), pytest.raises(AssertionError, match="made"):  # else the above could not fail
        x[0, :8] @ x[0, :8].mT
