"""KEP-SVGP attention on computed singular vectors: its law, equivariance, padding, draws, what is learned."""

import pyro.poutine as poutine
import pytest
import torch
from elbos import TraceMeanField_ELBO
from torch.testing import assert_close

from probattn import KEPSVGPAttention, guides, local_sites
from probattn.models import Classifier, ViT


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(dim=12, heads=3, **options):
    torch.manual_seed(0)
    return KEPSVGPAttention(dim, heads, **{"rank": 2, "projection": "svd", **options}).double()


def with_u(layer, u, x, mask=None):
    with local_sites(batch=x.shape[-3], num_data=x.shape[-3]):
        return poutine.condition(layer, data={"u": u})(x, mask)


U = randn(3, 2, 2, seed=1)
MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False, True, False, False, False, False]])


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


def test_layer_is_equivariant():
    layer, x, order = make(), randn(2, 6, 12), torch.tensor([3, 0, 5, 1, 4, 2])
    assert_close(with_u(layer, U, x[:, order]), with_u(layer, U, x)[:, order])


def test_padding_changes_no_real_token_and_may_hold_anything():
    layer, x = make(bias=True), randn(3, 6, 12)
    expected = with_u(layer, U, x, MASK)
    other = x.clone()
    other[~MASK] = torch.nan
    output = with_u(layer, U, other, MASK)
    assert_close(output[MASK], expected[MASK])
    for b in range(3):
        assert_close(output[b, MASK[b]], with_u(layer, U, x[b : b + 1, MASK[b]])[0])
    output[MASK].sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.requires_grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_repeated_tokens_and_fewer_tokens_than_s_have_finite_gradients(dtype):
    layer = make(rank=4).to(dtype)
    for x in (randn(2, 1, 12).expand(2, 6, 12), randn(2, 2, 12), torch.zeros(2, 3, 12)):
        x = x.to(dtype, copy=True).requires_grad_()
        output = with_u(layer, randn(3, 4, 4, seed=1).to(dtype), x)
        output.square().sum().backward()
        assert output.isfinite().all()
        assert x.grad.isfinite().all()


def test_draws_are_a_leading_dimension_of_u_and_of_x():
    layer, x, u = make(mean="softmax"), randn(5, 3, 6, 12), randn(5, 1, 3, 2, 2, seed=1)
    stacked, together = with_u(layer, u, x, MASK), with_u(layer, u, x[0], MASK)
    for s in range(5):
        assert_close(stacked[s], with_u(layer, u[s, 0], x[s], MASK))
        assert_close(together[s], with_u(layer, u[s, 0], x[0], MASK))


def test_gradients():
    layer, x = make(dim=4, heads=2, rank=1), randn(1, 3, 4).requires_grad_()
    u = randn(2, 1, 1, seed=1).requires_grad_()
    names, values = zip(*((n, p.detach().requires_grad_()) for n, p in layer.named_parameters()), strict=True)

    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, u, x):
            return with_u(self.layer, u, x)

    def function(u, x, *parameters):
        given = {f"layer.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(Program(), given, (u, x))

    assert torch.autograd.gradcheck(function, (u, x, *values))


def test_autocast_decomposes_in_float32():
    layer = make(dim=32, heads=4, rank=4).float()
    x, u = randn(8, 16, 32).float(), randn(4, 4, 4, seed=1).float()
    output = with_u(layer, u, x)
    with torch.autocast("cpu", torch.bfloat16):
        low = with_u(layer, u, x)
        assert layer.scores(x)[2].dtype == torch.float32
    assert (low - output).norm() < 0.05 * output.norm()


def test_a_network_trains_its_start_and_its_kernel():
    torch.manual_seed(0)
    network = ViT(
        image_size=8, channels=1, patch_size=2, classes=3, dim=8, depth=2, heads=2, mlp_dim=8,
        attention=KEPSVGPAttention.partial(rank=2, projection="svd"),
    )  # fmt: skip
    model = Classifier(network, num_data=20)
    guide = guides.for_model(model)
    TraceMeanField_ELBO()(model, guide)(torch.randn(5, 1, 8, 8), torch.randint(3, (5,))).backward()
    for name, parameter in model.named_parameters():
        if "projection" in name or "query_key" in name:
            assert parameter.grad.any(), name
