"""Kernel attention and its kernels against loops in float64, their initial scale, and what rounding does."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from probattn import AnchoredAttention, CGPAttention, SparseCGPAttention
from probattn.attention.kernel import KernelAttention
from probattn.attention.kernels import ARD, KERNELS, RBF
from probattn.functional.errors import NumericalError

ALL = [(kernel, symmetric) for kernel in KERNELS for symmetric in (False, True)]


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(kernel="rbf", symmetric=False, *, dim=12, heads=3, seed=0, **options):
    """A layer whose parameters are all away from where they start."""
    torch.manual_seed(seed)
    layer = KernelAttention(dim, heads, kernel=kernel, symmetric=symmetric, **options).double()
    with torch.no_grad():
        for parameter in layer.kernel.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return layer


def entry(layer, head, q, k):
    """κ(q, k) of a head by the formulae of section 5.1, in plain floats."""
    state = {name: value.detach()[head].tolist() for name, value in layer.kernel.named_parameters()}
    pairs = list(zip(q.tolist(), k.tolist(), strict=True))
    if isinstance(layer.kernel, RBF):
        return math.exp(-0.5 * sum((x - y) ** 2 for x, y in pairs))
    squares = [math.exp(log) ** 2 for log in state["log_lengthscale"]]
    if isinstance(layer.kernel, ARD):
        exponent = -0.5 * sum((x - y) ** 2 / square for (x, y), square in zip(pairs, squares, strict=True))
    else:
        exponent = sum(x * y / square for (x, y), square in zip(pairs, squares, strict=True))
    return math.exp(state["log_variance"]) * math.exp(exponent)


def loops(layer, x, mask=None):
    """The layer and its attention matrices as loops over examples, heads, queries and keys."""
    outputs, matrices = [], torch.zeros(x.shape[0], layer.heads, x.shape[1], x.shape[1], dtype=x.dtype)
    for b in range(x.shape[0]):
        real = range(x.shape[1]) if mask is None else mask[b].nonzero().flatten().tolist()
        if layer.symmetric:
            query, value = layer.query_value(x[b]).chunk(2, dim=-1)
            key = query
        else:
            query, key, value = layer.query_key_value(x[b]).chunk(3, dim=-1)
        joined = torch.zeros_like(x[b])
        for h in range(layer.heads):
            part = slice(h * layer.head_dim, (h + 1) * layer.head_dim)
            for i in range(x.shape[1]):
                for j in real:
                    matrices[b, h, i, j] = entry(layer, h, query[i, part], key[j, part])
                    joined[i, part] += matrices[b, h, i, j] * value[j, part]
        outputs.append(layer.out(joined))
    return torch.stack(outputs), matrices


MASK = torch.tensor([[True] * 6, [True, False, True, True, False, False]])


@pytest.mark.parametrize(("kernel", "symmetric"), ALL)
def test_layer_is_equation_6_in_loops(kernel, symmetric):
    layer, x = make(kernel, symmetric, bias=symmetric), randn(2, 6, 12)
    with torch.no_grad():
        output, matrix = loops(layer, x)
        assert_close(layer(x), output)
        assert_close(layer.attention_matrix(x), matrix)
        x = x.where(MASK.unsqueeze(-1), 0.0)
        output, matrix = loops(layer, x, MASK)
        assert_close(layer(x, MASK), output)
        assert_close(layer.attention_matrix(x, MASK), matrix)


@pytest.mark.parametrize("kernel", KERNELS)
def test_diagonal_is_that_of_the_matrix(kernel):
    layer, a = make(kernel), randn(2, 3, 6, 4)
    assert_close(layer.kernel.diagonal(a), layer.kernel(a, a).diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize(("dim", "heads"), [(128, 4), (16, 4)])
@pytest.mark.parametrize(("kernel", "symmetric"), ALL)
def test_attention_is_alive_at_first(kernel, symmetric, dim, heads):
    """On LayerNorm'ed tokens no entry off the diagonal is near 0, and they are not all one number."""
    layer = KernelAttention(dim, heads, kernel=kernel, symmetric=symmetric)
    x = F.layer_norm(torch.randn(8, 64, dim), (dim,))
    with torch.no_grad():
        entries = layer.attention_matrix(x)[..., ~torch.eye(64).bool()]
    assert 0.5 < entries.mean() < 1.2
    assert 0.06 < entries.std() < 0.5
    assert (entries < 0.05).float().mean() < 0.02
    if kernel != "exponential":
        assert -2 * entries.log().mean() == pytest.approx(1, rel=0.2)


@pytest.mark.parametrize("factory", [CGPAttention, SparseCGPAttention, AnchoredAttention])
def test_queries_keys_and_latent_inputs_lie_a_unit_apart_at_first(factory):
    layer, x = factory(64, 4), F.layer_norm(torch.randn(8, 64, 64), (64,))
    points = list(layer.split_heads(layer.query_key_value(x), 3)[:2])
    points += layer.split_heads(layer.latent(x), 1) if hasattr(layer, "latent") else ()
    for one, other in itertools.combinations(points, 2):
        assert (one - other).square().sum(-1).mean().item() == pytest.approx(1, rel=0.2)


def test_float32_is_near_float64_at_a_hundred_times_the_scale():
    """With W_q = W_k every diagonal entry is 1 to the last bit, however large the values."""
    layer, x = make("rbf", True, dim=64, heads=2), 100 * randn(2, 40, 64)
    matrix = layer.float().attention_matrix(x.float())
    assert (matrix.diagonal(dim1=-2, dim2=-1) == 1).all()
    assert_close(matrix.double(), layer.double().attention_matrix(x), atol=1e-4, rtol=0)


@pytest.mark.parametrize("symmetric", [False, True])
def test_an_exponential_that_overflows_raises(symmetric):
    layer, x = make("exponential", symmetric).float(), randn(2, 6, 12).float()
    layer(x)
    with pytest.raises(NumericalError, match="KernelAttention: kernel attention"):
        layer(100 * x)
