"""Noise of KEP-SVGP attention outside the leading directions: its variance by brute force, its site, its guide."""

import pyro.poutine as poutine
import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from torch.testing import assert_close

from probattn import KEPSVGPAttention, draws, guides, local_posteriors, local_sites
from probattn.draws import at_mean
from probattn.functional import subspace
from probattn.models import Classifier

PROJECTIONS = ["data", "plain", "svd"]
MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False, True, False, False, False, False]])
U = torch.zeros(3, 2, 2, dtype=torch.float64)


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(dim=12, heads=3, **options):
    torch.manual_seed(0)
    return KEPSVGPAttention(dim, heads, **{"rank": 2, "residual": 1.0, **options}).double()


def left_out(layer, x, mask=None):
    """The covariance of each branch that its scores leave out, from explicit kernels and projections."""
    kernel = layer.attention_matrix(x, mask)
    if mask is not None:
        kernel = kernel.where(mask[:, None, :, None], 0.0)
    found = []
    for score, matrix in zip(layer.scores(x, mask), (kernel, kernel.mT), strict=False):
        whole = matrix @ matrix.mT
        if layer.solves:
            found.append(whole - score @ score.mT)
        else:
            basis, values, _ = torch.linalg.svd(score, full_matrices=False)
            basis = basis * (values > 1e-9).unsqueeze(-2)
            outside = torch.eye(x.shape[-2], dtype=x.dtype) - basis @ basis.mT
            found.append(outside @ whole @ outside)
    return found


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_variances_are_those_of_explicit_projections(projection, mask):
    layer, x = make(projection=projection), randn(3, 6, 12)
    query_key = layer.queries_and_keys(layer.checked(x, mask))
    _, _, w_e, w_r = layer.scores(layer.checked(x, mask), mask)
    phi = subspace.features(query_key, mask)
    variances = subspace.residual_variances(phi, subspace.grams(phi), w_e, w_r, solved=layer.solves)
    for found, expected in zip(variances, left_out(layer, x, mask), strict=True):
        assert_close(found, expected.diagonal(dim1=-2, dim2=-1), rtol=1e-5, atol=1e-5)
        assert (found >= 0).all()


@pytest.mark.parametrize(("pair", "merge"), [("er", "add"), ("ee", "concat"), ("rr", "add")])
def test_output_given_u_has_the_variance_of_the_left_out_kernel(merge, pair):
    layer, x, number = make(merge=merge, pair=pair, tokens=6, projection="svd"), randn(2, 6, 12), 10_000
    layer.out = torch.nn.Identity()
    with torch.no_grad():
        layer.log_residual_amplitude.copy_(torch.tensor([0.5, 1.0, 2.0]).log())
    with torch.no_grad(), draws(number):
        f = poutine.condition(layer, data={"u": U})(x).unflatten(-1, (3, 2))
    e, r = (part.diagonal(dim1=-2, dim2=-1) for part in left_out(layer, x))
    total = sum({"e": e, "r": r}[branch] for branch in pair) * torch.tensor([0.25, 1.0, 4.0])[:, None]
    variance = f.var(0).transpose(1, 2)  # (B, H, N, s)
    error = total.unsqueeze(-1) * (2 / number) ** 0.5
    assert ((variance - total.unsqueeze(-1)).abs() < 6 * error + 1e-6).all()
    flat = (f - f.mean(0)).flatten(1)
    assert (torch.corrcoef(flat.T) - torch.eye(flat.shape[1])).abs().max() < 7 / number**0.5


def test_gradients_are_finite_where_nothing_is_left_out():
    for layer, x in (
        (make(dim=4, heads=1, rank=4, projection="svd"), randn(2, 6, 4)),
        (make(rank=4, projection="plain"), randn(2, 1, 12).expand(2, 6, 12)),
        (make(rank=4), randn(2, 2, 12)),
    ):
        x = x.clone().requires_grad_()
        with local_sites(batch=2, num_data=2):
            output = layer(x)
        output.square().sum().backward()
        assert output.isfinite().all()
        assert x.grad.isfinite().all()
        assert layer.log_residual_amplitude.grad.isfinite().all()


def test_padding_changes_no_real_token():
    layer, x = make(), randn(3, 6, 12)

    def given(noise, x, mask=None):
        with local_sites(batch=len(x), num_data=len(x)):
            return poutine.condition(layer, data={"u": U, "residual": noise})(x, mask)

    noise = randn(3, 3, 6, 2, seed=4)
    other = x.clone()
    other[~MASK] = torch.nan
    expected = given(noise, x, MASK)
    assert_close(given(noise, other, MASK)[MASK], expected[MASK])
    for b in range(3):
        assert_close(expected[b, MASK[b]], given(noise[b : b + 1, :, MASK[b]], x[b : b + 1, MASK[b]])[0])


def test_without_it_and_at_its_mean_nothing_changes():
    x, plain, layer = randn(2, 6, 12), make(residual=None), make()
    assert plain.log_residual_amplitude is None
    with local_sites(batch=2, num_data=2):
        expected = poutine.condition(plain, data={"u": U + 1})(x)
        with at_mean():
            assert_close(poutine.condition(layer, data={"u": U + 1})(x), expected)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("options", [{}, {"projection": "svd", "mean": "softmax"}])
def test_the_site_is_local_needs_no_guide_and_has_no_kl(elbo, options):
    layer = KEPSVGPAttention(8, 2, rank=2, residual=0.5, **options)
    model = Classifier(torch.nn.Sequential(layer, torch.nn.Flatten(-2), torch.nn.Linear(32, 3)), num_data=20)
    guide = guides.for_model(model)
    elbo, x, y = elbo(), torch.randn(5, 4, 8), torch.randint(3, (5,))
    elbo(model, guide)(x, y).backward()
    assert not any("residual" in name for name in elbo.terms())
    assert layer.log_residual_amplitude.grad.abs().min() > 0
    assert not any("residual" in name for name in dict(guide.named_parameters()))
    with local_posteriors():
        node = poutine.trace(model).get_trace(x, y).nodes["network.0.residual"]
    assert node["infer"]["local"]
    assert node["fn"].batch_shape == (5,)
