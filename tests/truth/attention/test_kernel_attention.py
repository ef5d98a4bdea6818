"""Kernel attention and its kernels against formulae in float64, their initial scale, and what
rounding does."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from sampling import randn
from torch.testing import assert_close

from probattn import AnchoredAttention, CGPAttention, RFFCGPAttention, SparseCGPAttention
from probattn.attention.kernel import KernelAttention
from probattn.attention.kernels import ARD, KERNELS, RBF

ALL = [(kernel, symmetric) for kernel in KERNELS for symmetric in (False, True)]


def make(kernel="rbf", symmetric=False, *, dim=12, heads=3, seed=0, **options):
    """A layer whose parameters are all away from where they start."""
    torch.manual_seed(seed)
    layer = KernelAttention(dim, heads, kernel=kernel, symmetric=symmetric, **options).double()
    with torch.no_grad():
        for parameter in layer.kernel.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return layer


def from_formulae(layer, x, mask):
    """Output and attention matrices by the formulae of section 5.1, over all pairs of tokens."""
    maps = layer.query_value if layer.symmetric else layer.query_key_value
    points = maps(x).unflatten(-1, (-1, layer.heads, layer.head_dim)).permute(2, 0, 3, 1, 4)
    query, key, value = (
        points[0].unsqueeze(-2),
        points[-2].unsqueeze(-3),
        points[-1],
    )  # if symmetric, key is query
    state = dict(layer.kernel.named_parameters())
    square = (
        state["log_lengthscale"].exp()[:, None, None] ** 2 if "log_lengthscale" in state else 1.0
    )
    if isinstance(layer.kernel, (RBF, ARD)):
        matrix = (-0.5 * ((query - key) ** 2 / square).sum(-1)).exp()
    else:
        matrix = (query * key / square).sum(-1).exp()
    if "log_variance" in state:
        matrix = matrix * state["log_variance"].exp()[:, None, None]
    matrix = matrix * mask[:, None, None, :]
    return layer.out((matrix @ value).transpose(1, 2).flatten(-2)), matrix


MASK = torch.tensor([[True] * 6, [True, False, True, True, False, False]])


@pytest.mark.parametrize(("kernel", "symmetric"), ALL)
@torch.no_grad()
def test_layer_is_equation_6(kernel, symmetric):
    layer, x = make(kernel, symmetric, bias=symmetric), randn(2, 6, 12)
    for mask, tokens in ((None, x), (MASK, x.where(MASK.unsqueeze(-1), 0.0))):
        expected, matrix = from_formulae(
            layer, tokens, torch.ones_like(MASK) if mask is None else mask
        )
        assert_close(layer(tokens, mask), expected)
        assert_close(layer.attention_matrix(tokens, mask), matrix)


@pytest.mark.parametrize("kernel", KERNELS)
def test_diagonal_is_that_of_the_matrix(kernel):
    layer, a = make(kernel), randn(2, 3, 6, 4)
    scaled = layer.kernel.scaled(a)
    assert_close(layer.kernel.diagonal(scaled), layer.kernel(a, a).diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize(("dim", "heads"), [(128, 4), (16, 4)])
@pytest.mark.parametrize(("kernel", "symmetric"), ALL)
def test_attention_is_alive_at_first(kernel, symmetric, dim, heads):
    """On LayerNorm'ed tokens no entry off the diagonal is near 0, and they are not all one
    number."""
    x = F.layer_norm(torch.randn(2, 64, dim), (dim,))
    layers = [KernelAttention(dim, heads, kernel=kernel, symmetric=symmetric) for _ in range(50)]
    with torch.no_grad():
        entries = torch.stack(
            [layer.attention_matrix(x)[..., ~torch.eye(64).bool()] for layer in layers]
        )
    assert 0.5 < entries.mean() < 1.2
    assert 0.06 < entries.std() < 0.5
    assert (entries < 0.05).float().mean() < 0.02
    if kernel != "exponential":
        assert -2 * entries.log().mean() == pytest.approx(1, rel=0.2)


@pytest.mark.parametrize(
    "factory", [CGPAttention, SparseCGPAttention, RFFCGPAttention, AnchoredAttention]
)
def test_queries_keys_and_latent_inputs_lie_a_unit_apart_at_first(factory):
    layer, x = factory(64, 4), F.layer_norm(torch.randn(8, 64, 64), (64,))
    points = list(layer.split_heads(layer.query_key_value(x), 3)[:2])
    points += layer.split_heads(layer.latent(x), 1) if hasattr(layer, "latent") else ()
    for one, other in itertools.combinations(points, 2):
        assert (one - other).square().sum(-1).mean().item() == pytest.approx(1, rel=0.2)
