"""KEP-SVGP attention on computed singular vectors: its scores, its spectrum, Λ, gradients."""

import pyro.poutine as poutine
import pytest
import torch
from torch.testing import assert_close

from probattn import KEPSVGPAttention, local_sites


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(dim=12, heads=3, **options):
    torch.manual_seed(0)
    return KEPSVGPAttention(dim, heads, **{"rank": 2, "projection": "svd", **options}).double()


def with_u(layer, u, x, mask=None):
    with local_sites(batch=x.shape[-3], num_data=x.shape[-3]):
        return poutine.condition(layer, data={"u": u})(x, mask)


U = randn(3, 2, 2, seed=1)


def test_scores_of_a_kernel_of_rank_s_are_its_singular_value_decomposition():
    layer, x = make(dim=4, heads=1, rank=4), randn(2, 6, 4)
    e, r, _, _ = layer.scores(x)
    kernel = layer.attention_matrix(x)
    assert_close(e @ e.mT, kernel @ kernel.mT, rtol=1e-6, atol=1e-6)
    assert_close(r @ r.mT, kernel.mT @ kernel, rtol=1e-6, atol=1e-6)
    left, values, right = torch.linalg.svd(kernel)
    expected = left[..., :4] * values[..., None, :4].square() @ right[..., :4, :]
    assert_close(e @ r.mT, expected, rtol=1e-6, atol=1e-6)
    assert_close(layer.spectrum(x), values[..., :4], rtol=1e-5, atol=1e-5)


def test_the_spectrum_is_that_of_the_kernel_on_the_columns_of_e_whatever_the_projection():
    x = randn(2, 6, 12)
    for projection in ("data", "plain", "svd"):
        layer = make(projection=projection)
        basis, _ = torch.linalg.qr(layer.scores(x)[0])
        expected = torch.linalg.svdvals(basis.mT @ layer.attention_matrix(x))
        assert_close(layer.spectrum(x), expected, rtol=1e-5, atol=1e-5)
    padded = layer.spectrum(torch.cat([x, randn(2, 3, 12, seed=2)], 1), torch.arange(9).expand(2, 9) < 6)
    assert_close(padded, layer.spectrum(x))


@pytest.mark.parametrize("merge", ["add", "concat"])
def test_function_values_do_not_depend_on_lambda(merge):
    """u ~ N(0, Λ²) enters as Λ⁻¹ u; Λ is not learned, and no site fits it."""
    x, v = randn(2, 6, 12), U
    outputs = [with_u(make(scale=c, merge=merge, tokens=6), c * v, x) for c in (1.0, 3.0)]
    assert_close(*outputs)
    layer = make()
    assert not layer.log_scale.requires_grad
    with local_sites(batch=2, num_data=2):
        assert "ksvd" not in poutine.trace(layer).get_trace(x).nodes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_repeated_tokens_and_fewer_tokens_than_s_have_finite_gradients(dtype):
    layer = make(rank=4).to(dtype)
    for x in (randn(2, 1, 12).expand(2, 6, 12), randn(2, 2, 12), torch.zeros(2, 3, 12)):
        x = x.to(dtype, copy=True).requires_grad_()
        output = with_u(layer, randn(3, 4, 4, seed=1).to(dtype), x)
        output.square().sum().backward()
        assert output.isfinite().all()
        assert x.grad.isfinite().all()
