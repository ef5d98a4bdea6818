"""SGPA as a program: output, the law of g and the objective against loops in float64."""

import pyro.poutine as poutine
import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from sampling import assert_moments, output, randn, run
from sgpa_reference import MASK, Head, heads_of, law, make
from torch import nn
from torch.distributions import kl_divergence
from torch.testing import assert_close

from probattn import draws, guides, local_posteriors
from probattn.models import Classifier

DRAWS = pytest.mark.parametrize("how", ["marginal", "joint"])
FORMS = pytest.mark.parametrize("inducing", [3, None])


def value_of_u(layer, *lead, seed=1):
    """Values of the global site, by name; none in the standard form."""
    shape = (*lead, layer.heads, layer.head_dim, layer.inducing)
    return {"u": randn(*shape, seed=seed)} if layer.inducing else {}


@pytest.mark.parametrize(("masked", "bias"), [(True, True), (False, False)], ids=["masked", "whole"])
@pytest.mark.parametrize("kind", ["ard", "exponential", "rbf"])
@FORMS
@DRAWS
def test_layer_is_math_in_loops(how, inducing, kind, masked, bias):
    """Output given u and g; mean, variance, covariance and KL of g under prior and posterior."""
    layer = make(inducing=inducing, kernel=kind, draws=how, bias=bias)
    x, g, mask = randn(2, 5, 6), randn(2, 2, 5, 3, seed=2), MASK if masked else None
    u = value_of_u(layer)
    put_out = output(layer, x, mask, g=g, **u)
    prior, posterior = law(run(layer, x, mask, **u))
    kl = kl_divergence(posterior, prior)  # of joint draws, also where the draws are marginal
    for b, heads in enumerate(heads_of(layer, x, mask)):
        real = MASK[b] if masked else torch.ones(5, dtype=torch.bool)
        columns = [head.f(g[b, h, real], u["u"][h] if u else None) for h, head in enumerate(heads)]
        assert_close(put_out[b, real], layer.out(torch.cat(columns, dim=-1)))
        assert_close(kl[b], sum(head.kl for head in heads))
        assert (prior.mean[b] == 0).all()
        assert (posterior.mean[b][:, ~real] == 0).all()
        for h, head in enumerate(heads):
            assert_close(posterior.mean[b, h, real], head.mean)
            for distribution, covariance in ((prior, head.c), (posterior, head.posterior)):
                diagonal = covariance.diagonal().unsqueeze(-1).expand(-1, 3)
                assert_close(distribution.variance[b, h, real], diagonal)
                if how == "joint":
                    tril = distribution.covariance.tril[b, h]
                    assert_close((tril @ tril.T)[real][:, real], covariance)


@FORMS
@DRAWS
def test_law_of_the_draws_under_the_guide(how, inducing):
    """Many u and g: moments of f against the formula's mean and covariance, or its diagonal for marginal draws of g."""
    layer, x = make(inducing=inducing, draws=how), randn(1, 4, 6)
    with torch.no_grad():
        nn.init.zeros_(layer.out.bias)
        nn.init.eye_(layer.out.weight)
    guide = guides.for_model(layer).double()
    if inducing is not None:
        with torch.no_grad():
            guide.u.raw_tril += 0.5 * randn(*guide.u.raw_tril.shape, seed=3)
    with torch.no_grad(), draws(20_000):
        trace = poutine.trace(guide).get_trace(x)
        with local_posteriors():
            f = poutine.replay(layer, trace)(x)[:, 0].unflatten(-1, (2, 3))
    for h in range(2):
        head = Head(layer, x[0], h)
        for d in range(3):
            mean, covariance = head.mean[:, d], head.posterior
            covariance = covariance if how == "joint" else covariance.diagonal().diag()
            if inducing is not None:
                t = guide.u.scale_tril[h, d].detach()
                s = head.tril @ t @ t.T @ head.tril.T
                mean = mean + head.project @ head.tril @ guide.u.loc[h, d].detach()
                covariance = covariance + head.project @ s @ head.project.T
            assert_moments(f[:, :, h, d], mean, covariance)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"heads": 1, "draws": "joint"}, (1, 5, 6)),
        ({"inducing": 1}, (2, 1, 6)),
        ({"inducing": 9}, (2, 2, 6)),
        ({"heads": 6, "dim": 12}, (2, 5, 12)),
        ({"inducing": None, "heads": 1}, (1, 1, 6)),
    ],
)
def test_corner_shapes(options, shape):
    layer, x = make(**options), randn(*shape)
    u, g = value_of_u(layer), randn(shape[0], layer.heads, shape[1], layer.head_dim, seed=2)
    put_out = output(layer, x, g=g, **u)
    _, posterior = law(run(layer, x, **u))
    for b, heads in enumerate(heads_of(layer, x)):
        columns = [head.f(g[b, h], u["u"][h] if u else None) for h, head in enumerate(heads)]
        assert_close(put_out[b], layer.out(torch.cat(columns, dim=-1)))
        assert_close(posterior.mean[b], torch.stack([head.mean for head in heads]))


@pytest.mark.parametrize("kind", ["ard", "exponential"])
@FORMS
def test_attention_matrix_is_the_kernel_between_tokens(kind, inducing):
    layer, x = make(kernel=kind, inducing=inducing, bias=True), randn(2, 5, 6)
    expected = torch.stack([torch.stack([head.k for head in row]) for row in heads_of(layer, x)])
    assert_close(layer.attention_matrix(x), expected)
    masked = layer.attention_matrix(x.where(MASK.unsqueeze(-1), torch.nan), MASK)
    assert_close(masked, expected * (MASK[:, None, :, None] & MASK[:, None, None, :]))


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@FORMS
@DRAWS
def test_terms_of_the_loss_are_maths(how, inducing, elbo):
    """KL of u once, KL of g for every example times N/B, exactly so at each number of draws."""
    layer = make(inducing=inducing, draws=how)
    model = Classifier(nn.Sequential(layer, nn.Flatten(-2), nn.Linear(30, 3)).double(), num_data=10).double()
    guide, objective, (x, y) = guides.for_model(model), elbo(), (randn(2, 5, 6), torch.tensor([0, 2]))
    heads = heads_of(layer, x)
    expected = 10 / 2 * sum(head.kl for row in heads for head in row)
    for number in (None, "example", 4):
        with draws(number) if number else poutine.block(hide=[]):
            loss = objective(model, guide)(x, y)
        exact = how == "marginal" or elbo is TraceMeanField_ELBO
        assert objective.terms()["kl/network.0.g"] == pytest.approx(expected.item(), rel=1e-7) or not exact
        assert sum(objective.terms().values()) == pytest.approx(loss.item(), rel=1e-10)
    if inducing is not None and elbo is TraceMeanField_ELBO:
        u, total = guide.get_submodule("network.0.u"), 0.0
        for h, head in enumerate(heads[0]):
            for d in range(3):
                t, v = u.scale_tril[h, d], torch.linalg.solve(head.tril.T, u.loc[h, d])
                total += 0.5 * (torch.trace(t @ t.T) - torch.logdet(t @ t.T) - 3 + v @ head.k_bb @ v)
        assert objective.terms()["kl/network.0.u"] == pytest.approx(total.item(), rel=1e-7)
