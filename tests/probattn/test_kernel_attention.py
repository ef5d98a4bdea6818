"""Kernel attention and its kernels against loops in float64, masks, autocast, and what makes it fail loudly."""

import math

import pyro.poutine as poutine
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from probattn import name_layers
from probattn.attention.kernel import KernelAttention
from probattn.attention.kernels import ARD, KERNELS, RBF, Exponential
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


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kernel", "symmetric"), ALL)
def test_layer_is_equation_6_in_loops(kernel, symmetric, bias):
    layer, x = make(kernel, symmetric, bias=bias), randn(2, 6, 12)
    with torch.no_grad():
        output, matrix = loops(layer, x)
        assert_close(layer(x), output)
        assert_close(layer.attention_matrix(x), matrix)
        x = x.where(MASK.unsqueeze(-1), 0.0)
        output, matrix = loops(layer, x, MASK)
        assert_close(layer(x, MASK), output)
        assert_close(layer.attention_matrix(x, MASK), matrix)


@pytest.mark.parametrize("kernel", KERNELS)
def test_symmetric_matrices_are_symmetric_and_positive_semi_definite_and_others_are_not(kernel):
    x = randn(2, 6, 12)
    matrix = make(kernel, True).attention_matrix(x)
    assert_close(matrix, matrix.mT)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-12
    matrix = make(kernel, False).attention_matrix(x)
    assert (matrix - matrix.mT).abs().max() > 1e-2


@pytest.mark.parametrize("kernel", KERNELS)
def test_diagonal_is_that_of_the_matrix(kernel):
    layer, a = make(kernel), randn(2, 3, 6, 4)
    assert_close(layer.kernel.diagonal(a), layer.kernel(a, a).diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_of_two_sets_and_of_one_that_broadcasts(kernel):
    layer, a, b = make(kernel), randn(2, 3, 6, 4), randn(3, 5, 4, seed=1)
    matrix = layer.kernel(a, b)
    for i in range(2):
        for h in range(3):
            for n in range(6):
                for m in range(5):
                    assert matrix[i, h, n, m].item() == pytest.approx(entry(layer, h, a[i, h, n], b[h, m]), rel=1e-12)


@pytest.mark.parametrize(("dim", "heads"), [(384, 12), (128, 4), (16, 4)])
@pytest.mark.parametrize(("kernel", "symmetric"), ALL)
def test_attention_is_alive_at_first(kernel, symmetric, dim, heads):
    """On LayerNorm'ed tokens no entry off the diagonal is near 0, and they are not all one number."""
    torch.manual_seed(0)
    layer = KernelAttention(dim, heads, kernel=kernel, symmetric=symmetric)
    x = F.layer_norm(torch.randn(8, 64, dim), (dim,))
    with torch.no_grad():
        entries = layer.attention_matrix(x)[..., ~torch.eye(64).bool()]
    assert 0.5 < entries.mean() < 1.2
    assert 0.06 < entries.std() < 0.5
    assert (entries < 0.05).float().mean() < 0.02
    if kernel != "exponential":
        assert -2 * entries.log().mean() == pytest.approx(1, rel=0.2)


def test_initial_scales_are_those_documented():
    assert_close(ARD(2, 6).log_lengthscale.exp(), torch.full((2, 6), 2.0))  # ℓ² = 2d/3
    assert_close(Exponential(2, 16).log_lengthscale.exp(), torch.full((2, 16), 2.0))  # ℓ² = √d
    assert_close(ARD(2, 6).variance, torch.ones(2))
    assert list(RBF(2, 6).parameters()) == []


@pytest.mark.parametrize(("kernel", "symmetric"), ALL)
def test_padding_changes_no_real_token(kernel, symmetric):
    layer, x = make(kernel, symmetric, bias=True), randn(2, 6, 12)
    expected = layer(x, MASK)[MASK]
    assert_close(layer(x[1:, MASK[1]])[0], layer(x, MASK)[1, MASK[1]])
    for value in (1e6, math.nan, math.inf):
        other = x.clone()
        other[~MASK] = value
        output = layer(other, MASK)
        assert_close(output[MASK], expected)
        layer.zero_grad()
        output[MASK].sum().backward()
        assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize(("kernel", "symmetric"), ALL)
def test_draws_pass_through(kernel, symmetric):
    layer, x = make(kernel, symmetric), randn(5, 3, 2, 6, 12)
    together, matrix = layer(x, MASK), layer.attention_matrix(x, MASK)
    for s in range(5):
        for p in range(3):
            assert_close(together[s, p], layer(x[s, p], MASK))
            assert_close(matrix[s, p], layer.attention_matrix(x[s, p], MASK))


@pytest.mark.parametrize(("kernel", "symmetric"), ALL)
def test_non_contiguous_one_head_batch_of_one_and_one_token(kernel, symmetric):
    layer = make(kernel, symmetric, heads=1)
    x = randn(12, 6, 1).permute(2, 1, 0)
    assert not x.is_contiguous()
    with torch.no_grad():
        assert_close(layer(x), loops(layer, x)[0])
        assert_close(layer(x[:, :1]), loops(layer, x[:, :1])[0])


@pytest.mark.parametrize(("kernel", "symmetric"), ALL)
def test_gradients(kernel, symmetric):
    layer = make(kernel, symmetric, dim=4, heads=2)
    x, mask = randn(1, 3, 4).requires_grad_(), torch.tensor([[True, True, False]])
    names = [name for name, _ in layer.named_parameters()]

    def function(x, *parameters):
        values = dict(zip(names, parameters, strict=True))
        return tuple(torch.func.functional_call(layer, values, (x, m)) for m in (None, mask))

    assert torch.autograd.gradcheck(function, (x, *(p.detach().requires_grad_() for p in layer.parameters())))


@pytest.mark.parametrize(("kernel", "symmetric"), ALL)
def test_every_parameter_gets_a_gradient(kernel, symmetric):
    layer = make(kernel, symmetric)
    layer(randn(2, 6, 12)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert (parameter.grad.abs() > 1e-6).all(), name


@pytest.mark.parametrize(("kernel", "symmetric"), ALL)
def test_bf16_autocast_computes_the_kernel_in_float32(kernel, symmetric, monkeypatch):
    layer, x = make(kernel, symmetric, dim=32, heads=4).float(), randn(4, 16, 32).float()
    expected = layer(x)
    seen = []
    exact = layer.kernel.forward
    monkeypatch.setattr(layer.kernel, "forward", lambda a, b: seen.append((a, b, exact(a, b))) or seen[-1][2])
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x)
    assert output.dtype == torch.bfloat16
    ((a, b, matrix),) = seen
    assert matrix.dtype == torch.float32
    assert_close(matrix, exact(a, b), rtol=1e-6, atol=0)  # nothing inside was rounded to bf16
    assert (output - expected).norm() / expected.norm() < 5e-2


def test_float32_is_near_float64_at_a_hundred_times_the_scale():
    """With W_q = W_k every diagonal entry is 1 to the last bit, however large the values."""
    layer, x = make("rbf", True, dim=64, heads=2), 100 * randn(2, 40, 64)
    matrix = layer.float().attention_matrix(x.float())
    assert (matrix.diagonal(dim1=-2, dim2=-1) == 1).all()
    assert_close(matrix.double(), layer.double().attention_matrix(x), atol=1e-4, rtol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(("kernel", "symmetric"), ALL)
def test_nan_and_inf_raise_and_name_the_layer(kernel, symmetric, value):
    network = torch.nn.Sequential(torch.nn.Identity(), make(kernel, symmetric))
    name_layers(network)
    x = randn(2, 6, 12)
    x[1, 3, 2] = value
    with pytest.raises(NumericalError, match="KernelAttention '1': kernel attention"):
        network(x)
    with pytest.raises(NumericalError, match="KernelAttention '1': kernel matrix"):
        network[1].attention_matrix(x)


@pytest.mark.parametrize("symmetric", [False, True])
def test_an_exponential_that_overflows_raises(symmetric):
    layer, x = make("exponential", symmetric).float(), randn(2, 6, 12).float()
    layer(x)
    with pytest.raises(NumericalError, match="KernelAttention: kernel attention"):
        layer(100 * x)


@pytest.mark.parametrize("kernel", ["rbf", "ard"])
def test_bounded_kernels_take_a_hundred_times_the_scale(kernel):
    assert make(kernel).float()(100 * randn(2, 6, 12).float()).isfinite().all()


def test_it_is_a_program_without_sites():
    layer = make()
    assert layer.sites() == {}
    nodes = poutine.trace(layer).get_trace(randn(2, 6, 12)).nodes
    assert [node["name"] for node in nodes.values() if node["type"] == "sample"] == []


def test_signature_knows_kernel_and_symmetry():
    """κ_o and ARD differ in their parameters; a checkpoint must also tell apart what has the same shapes."""
    signatures = [make(kernel, symmetric).signature() for kernel, symmetric in ALL]
    assert len({tuple(signature.items()) for signature in signatures}) == len(ALL)
    assert signatures[0] == {"layer": "KernelAttention", "dim": 12, "heads": 3, "kernel": "RBF", "symmetric": False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "matern"}, "kernel must be one of rbf, ard, exponential, got 'matern'"),
        ({"dim": 10, "heads": 4}, "multiple of heads"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize("method", ["forward", "attention_matrix"])
@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (randn(2, 6, 11), None, "project x first"),
        (randn(6, 12), None, "batch, tokens, 12"),
        (randn(2, 6, 12), torch.ones(2, 5).bool(), "boolean mask"),
        (randn(2, 6, 12), torch.ones(2, 6), "boolean mask"),
        (randn(2, 6, 12), torch.tensor([[True] * 6, [False] * 6]), r"rows \[1\]"),
    ],
)
def test_bad_input_is_named(method, x, mask, message):
    with pytest.raises(ValueError, match=message):
        getattr(make(), method)(x, mask)
