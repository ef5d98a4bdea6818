"""Singular directions of KEP-SVGP's attention kernel: computed ones, and the noise of what scores
leave out."""

import pyro.poutine as poutine
import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from kep_svgp_layers import layer_of
from sampling import assert_moments, output, randn, run
from torch.testing import assert_close

from probattn import draws, guides, local_posteriors
from probattn.functional import subspace
from probattn.models import Classifier
from probattn.site_info import info_of

PROJECTIONS = ["data", "plain", "svd"]
MASK = torch.tensor(
    [[True] * 6, [True] * 4 + [False] * 2, [False, True, False, False, False, False]]
)
U = torch.zeros(3, 2, 2, dtype=torch.float64)


def noisy(*sizes, **options):
    return layer_of(*sizes, **{"residual": 1.0, **options})


def left_out(layer, x, mask=None):
    """The covariance of each branch that its scores leave out, from explicit kernels and
    projections."""
    kernel = layer.attention_matrix(x, mask)
    kernel = kernel if mask is None else kernel.where(mask[:, None, :, None], 0.0)
    for score, matrix in zip(layer.scores(x, mask)[:2], (kernel, kernel.mT), strict=True):
        whole = matrix @ matrix.mT
        if layer.solves:
            yield whole - score @ score.mT
        else:
            basis, values, _ = torch.linalg.svd(score, full_matrices=False)
            basis = basis * (values > 1e-9).unsqueeze(-2)
            outside = torch.eye(x.shape[-2], dtype=x.dtype) - basis @ basis.mT
            yield outside @ whole @ outside


def test_computed_scores_of_a_kernel_of_rank_s_are_its_singular_value_decomposition():
    layer, x = layer_of(4, 1, rank=4, projection="svd"), randn(2, 6, 4)
    e, r, _, _ = layer.scores(x)
    kernel = layer.attention_matrix(x)
    left, values, right = torch.linalg.svd(kernel)
    coupled = left[..., :4] * values[..., None, :4].square() @ right[..., :4, :]
    for score, other, expected in (
        (e, e, kernel @ kernel.mT),
        (r, r, kernel.mT @ kernel),
        (e, r, coupled),
    ):
        assert_close(score @ other.mT, expected, rtol=1e-6, atol=1e-6)
    assert_close(layer.spectrum(x), values[..., :4], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_the_spectrum_is_that_of_the_kernel_on_the_columns_of_e_whatever_the_projection(projection):
    layer, x = layer_of(projection=projection), randn(2, 6, 12)
    basis, _ = torch.linalg.qr(layer.scores(x)[0])
    expected = torch.linalg.svdvals(basis.mT @ layer.attention_matrix(x))
    assert_close(layer.spectrum(x), expected, rtol=1e-5, atol=1e-5)
    padded = layer.spectrum(
        torch.cat([x, randn(2, 3, 12, seed=2)], 1), torch.arange(9).expand(2, 9) < 6
    )
    assert_close(padded, layer.spectrum(x))


@pytest.mark.parametrize("merge", ["add", "concat"])
def test_computed_function_values_do_not_depend_on_lambda(merge):
    """u ~ N(0, Λ²) enters as Λ⁻¹ u; Λ is not learned, and no site fits it."""
    x, u = randn(2, 6, 12), randn(3, 2, 2, seed=1)
    layers = [
        layer_of(projection="svd", scale=scale, merge=merge, tokens=6) for scale in (1.0, 3.0)
    ]
    assert_close(output(layers[0], x, u=u), output(layers[1], x, u=3 * u))
    assert not layers[0].log_scale.requires_grad
    assert "ksvd" not in run(layers[0], x).nodes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_repeated_tokens_and_fewer_tokens_than_s_have_finite_gradients(dtype):
    layer = layer_of(rank=4, projection="svd").to(dtype)
    for x in (randn(2, 1, 12).expand(2, 6, 12), randn(2, 2, 12), torch.zeros(2, 3, 12)):
        assert_finite(layer, x.to(dtype), u=randn(3, 4, 4, seed=1).to(dtype))


def test_gradients_are_finite_where_nothing_is_left_out():
    for layer, x in (
        (noisy(4, 1, rank=4, projection="svd"), randn(2, 6, 4)),
        (noisy(rank=4, projection="plain"), randn(2, 1, 12).expand(2, 6, 12)),
        (noisy(rank=4), randn(2, 2, 12)),
    ):
        assert_finite(layer, x)
        assert layer.log_residual_amplitude.grad.isfinite().all()


def assert_finite(layer, x, **values):
    x = x.clone().requires_grad_()
    put_out = output(layer, x, **values)
    put_out.square().sum().backward()
    assert put_out.isfinite().all()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_variances_are_those_of_explicit_projections(projection, mask):
    layer, x = noisy(projection=projection), randn(3, 6, 12)
    real = layer.checked(x, mask)
    phi = subspace.features(layer.queries_and_keys(real), mask)
    weights = layer.scores(real, mask)[2:]
    variances = subspace.residual_variances(phi, subspace.grams(phi), *weights, solved=layer.solves)
    for variance, expected in zip(variances, left_out(layer, x, mask), strict=True):
        assert_close(variance, expected.diagonal(dim1=-2, dim2=-1), rtol=1e-5, atol=1e-5)
        assert (variance >= 0).all()


@pytest.mark.parametrize(("pair", "merge"), [("er", "add"), ("ee", "concat"), ("rr", "add")])
def test_output_given_u_has_the_variance_of_the_left_out_kernel(merge, pair):
    layer, x = noisy(merge=merge, pair=pair, tokens=6, projection="svd"), randn(1, 6, 12)
    layer.out = torch.nn.Identity()
    with torch.no_grad(), draws(10_000):
        layer.log_residual_amplitude.copy_(torch.tensor([0.5, 1.0, 2.0]).log())
        f = poutine.condition(layer, data={"u": U})(x)  # (S, 1, N, H s)
    variances = dict(
        zip("er", (part.diagonal(dim1=-2, dim2=-1)[0] for part in left_out(layer, x)), strict=True)
    )
    total = sum(variances[branch] for branch in pair) * torch.tensor([0.25, 1.0, 4.0])[:, None]
    assert_moments(
        f.flatten(1), 0.0, total.T.repeat_interleave(2, 1).flatten().diag() + 1e-7 * torch.eye(36)
    )


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("options", [{}, {"projection": "svd", "mean": "softmax"}])
def test_the_site_is_local_needs_no_guide_and_has_no_kl(elbo, options):
    layer = noisy(8, 2, residual=0.5, **options).float()
    model = Classifier(
        torch.nn.Sequential(layer, torch.nn.Flatten(-2), torch.nn.Linear(32, 3)), num_data=20
    )
    guide = guides.for_model(model)
    elbo = elbo()
    x = torch.randn(5, 4, 8)
    y = torch.randint(3, (5,))
    elbo(model, guide)(x, y).backward()
    assert not any("residual" in name for name in (*elbo.terms(), *dict(guide.named_parameters())))
    assert layer.log_residual_amplitude.grad.abs().min() > 0
    with local_posteriors():
        node = poutine.trace(model).get_trace(x, y).nodes["network.0.residual"]
    assert info_of(node).local
    assert node["fn"].batch_shape == (5,)
