"""SGPA as a program: output, the law of g and the objective against MATH in float64."""

import pyro.poutine as poutine
import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from sampling import output, randn, run
from sgpa_reference import MASK, examples_of, law, make
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probattn import draws, guides
from probattn.models import Classifier

DRAWS = pytest.mark.parametrize("how", ["marginal", "joint"])
FORMS = pytest.mark.parametrize("inducing", [3, None])


def assert_is_math(layer, x, mask=None):
    """Output given u and g; mean, variance, covariance and KL of g under prior and posterior."""
    g = randn(len(x), layer.heads, x.shape[1], layer.head_dim, seed=2)
    u = {"u": randn(layer.heads, layer.head_dim, layer.inducing, seed=1)} if layer.inducing else {}
    put_out, (prior, posterior) = output(layer, x, mask, g=g, **u), law(run(layer, x, mask, **u))
    kl = kl_divergence(posterior, prior)  # of joint draws, also where the draws are marginal
    for b, heads in enumerate(examples_of(layer, x, mask)):
        real = torch.ones(x.shape[1], dtype=torch.bool) if mask is None else mask[b]
        assert_close(put_out[b, real], layer.out(layer.join_heads(heads.f(g[b][:, real], **u))))
        assert_close(kl[b], heads.kl)
        assert (prior.mean[b] == 0).all()
        assert (posterior.mean[b][:, ~real] == 0).all()
        assert_close(posterior.mean[b][:, real], heads.mean)
        for distribution, covariance in ((prior, heads.c), (posterior, heads.posterior)):
            diagonal = covariance.diagonal(dim1=-2, dim2=-1).unsqueeze(-1).expand_as(heads.mean)
            assert_close(distribution.variance[b][:, real], diagonal)
            if layer.draws == "joint":
                tril = distribution.covariance.tril[b]
                assert_close((tril @ tril.mT)[:, real][..., real], covariance)


@pytest.mark.parametrize(
    ("masked", "bias"), [(True, True), (False, False)], ids=["masked", "whole"]
)
@pytest.mark.parametrize("kind", ["ard", "exponential", "rbf"])
@FORMS
@DRAWS
def test_layer_is_math(how, inducing, kind, masked, bias):
    layer = make(inducing=inducing, kernel=kind, draws=how, bias=bias)
    assert_is_math(layer, randn(2, 5, 6), MASK if masked else None)


CORNERS = [
    ({"heads": 1, "draws": "joint"}, (1, 5, 6)),
    ({"inducing": 1}, (2, 1, 6)),
    ({"inducing": 9}, (2, 2, 6)),
]
CORNERS += [({"heads": 6, "dim": 12}, (2, 5, 12)), ({"inducing": None, "heads": 1}, (1, 1, 6))]


@pytest.mark.parametrize(("options", "shape"), CORNERS)
def test_corner_shapes(options, shape):
    assert_is_math(make(**options), randn(*shape))


@pytest.mark.parametrize("kind", ["ard", "exponential"])
@FORMS
def test_attention_matrix_is_the_kernel_between_tokens(kind, inducing):
    layer, x = make(kernel=kind, inducing=inducing, bias=True), randn(2, 5, 6)
    expected = torch.stack([heads.k for heads in examples_of(layer, x)])
    assert_close(layer.attention_matrix(x), expected)
    masked = layer.attention_matrix(x.where(MASK.unsqueeze(-1), torch.nan), MASK)
    assert_close(masked, expected * (MASK[:, None, :, None] & MASK[:, None, None, :]))


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@FORMS
@DRAWS
def test_terms_of_the_loss_are_maths(how, inducing, elbo):
    """KL of u once, KL of g for every example times N/B, exactly so at each number of draws."""
    layer = make(inducing=inducing, draws=how)
    model = Classifier(
        nn.Sequential(layer, nn.Flatten(-2), nn.Linear(30, 3)).double(), num_data=10
    ).double()
    guide = guides.for_model(model)
    objective = elbo()
    (x, y) = (randn(2, 5, 6), torch.tensor([0, 2]))
    expected = 10 / 2 * sum(heads.kl for heads in examples_of(layer, x))
    for number in (None, "example", 4):
        with draws(number) if number else poutine.block(hide=[]):
            loss = objective(model, guide)(x, y)
        exact = how == "marginal" or elbo is TraceMeanField_ELBO
        assert (
            objective.terms()["kl/network.0.g"] == pytest.approx(expected.item(), rel=1e-7)
            or not exact
        )
        assert sum(objective.terms().values()) == pytest.approx(loss.item(), rel=1e-10)
    if inducing is not None and elbo is TraceMeanField_ELBO:
        q = MultivariateNormal(
            (u := guide.get_submodule("network.0.u")).loc, scale_tril=u.scale_tril
        )
        whitened = kl_divergence(
            q, MultivariateNormal(torch.zeros_like(u.loc), torch.eye(3, dtype=x.dtype))
        ).sum()
        assert objective.terms()["kl/network.0.u"] == pytest.approx(whitened.item(), rel=1e-7)
