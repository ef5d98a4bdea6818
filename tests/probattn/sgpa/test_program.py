"""SGPA as a program: output and the law of g against loops in float64, draws, shapes, kernels."""

import pyro.poutine as poutine
import pytest
import torch
from torch import nn
from torch.distributions import kl_divergence
from torch.testing import assert_close

from probattn import draws, guides, local_posteriors, name_layers
from probattn.inference import predict

F64 = torch.float64
DRAWS = pytest.mark.parametrize("how", ["marginal", "joint"])
FORMS = pytest.mark.parametrize("inducing", [3, None])
MASK = torch.tensor([[True] * 5, [True, False, True, True, False]])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["ard", "exponential", "rbf"])
@FORMS
@DRAWS
def test_layer_is_math_in_loops(sgpa, how, inducing, kind, bias, masked):
    """Output given u and g; mean, variance, covariance and KL of g under prior and posterior."""
    layer = sgpa.make(inducing=inducing, kernel=kind, draws=how, bias=bias)
    x, g = randn(2, 5, 6), randn(2, 2, 5, 3, seed=2)
    mask = MASK if masked else None
    u = {} if inducing is None else {"u": randn(2, 3, 3, seed=1)}
    output = sgpa.run(layer, x, mask, g=g, **u).nodes["_RETURN"]["value"]
    trace = sgpa.run(layer, x, mask, **u)
    prior, posterior = sgpa.law(trace)
    kl = kl_divergence(posterior, prior)  # of joint draws, also where the draws are marginal
    for b, heads in enumerate(sgpa.heads_of(layer, x, mask)):
        real = MASK[b] if masked else torch.ones(5, dtype=torch.bool)
        columns = []
        for h, head in enumerate(heads):
            f = g[b, h, real]
            if inducing is not None:
                f = f + torch.stack([head.project @ head.tril @ u["u"][h, d] for d in range(3)], dim=-1)
            columns.append(f)
            assert_close(posterior.mean[b, h, real], head.mean)
            assert (posterior.mean[b, h, ~real] == 0).all()
            assert (prior.mean[b, h] == 0).all()
            for distribution, covariance in ((prior, head.c), (posterior, head.posterior)):
                diagonal = covariance.diagonal().unsqueeze(-1).expand(-1, 3)
                assert_close(distribution.variance[b, h, real], diagonal)
                if how == "joint":
                    tril = distribution.covariance.tril[b, h]
                    assert_close((tril @ tril.T)[real][:, real], covariance)
        expected = torch.cat(columns, dim=-1) @ layer.out.weight.T + layer.out.bias
        assert_close(output[b, real], expected)
        assert_close(kl[b], sum(head.kl for head in heads))


@FORMS
@DRAWS
def test_law_of_the_draws_under_the_guide(sgpa, how, inducing):
    """Many u and g: moments of f against the formula's mean and covariance, or its diagonal for marginal draws of g."""
    layer = sgpa.unprojected(inducing=inducing, draws=how)
    guide = guides.for_model(layer).double()
    x, number = randn(1, 4, 6), 40_000
    if inducing is not None:
        with torch.no_grad():
            guide.u.raw_tril += 0.5 * randn(*guide.u.raw_tril.shape, seed=3)
    torch.manual_seed(1)
    with torch.no_grad(), draws(number):
        trace = poutine.trace(guide).get_trace(x)
        with local_posteriors():
            f = poutine.replay(layer, trace)(x)[:, 0].unflatten(-1, (2, 3))
    for h in range(2):
        head = sgpa.Head(layer, x[0], h)
        for d in range(3):
            mean, covariance = head.mean[:, d], head.posterior
            if how == "marginal":
                covariance = torch.diag(covariance.diagonal())
            if inducing is not None:
                t = guide.u.scale_tril[h, d].detach()
                v_beta = torch.linalg.solve(head.tril.T, guide.u.loc[h, d].detach())
                s = head.tril @ t @ t.T @ head.tril.T
                mean = mean + head.project @ head.k_bb @ v_beta
                if how == "joint":
                    inverse = torch.linalg.inv(head.k_bb)
                    k_qb = head.project @ head.k_bb
                    covariance = head.k + k_qb @ inverse @ (s - head.k_bb) @ inverse @ k_qb.T
                else:
                    covariance = covariance + head.project @ s @ head.project.T
            samples, variance = f[:, :, h, d], covariance.diagonal()
            assert ((samples.mean(0) - mean).abs() < 5 * (variance / number).sqrt()).all()
            error = torch.outer(variance, variance).sqrt() * (2 / number) ** 0.5
            assert ((samples.T.cov() - covariance).abs() < 5 * error).all()


def test_prior_of_the_program_is_the_kernel(sgpa):
    """Without a guide, f ~ N(0, K) for joint draws: u from its prior, g from N(0, C)."""
    layer, x, number = sgpa.unprojected(draws="joint"), randn(1, 4, 6), 40_000
    torch.manual_seed(1)
    with torch.no_grad(), draws(number):
        f = layer(x)[:, 0].unflatten(-1, (2, 3))
    for h in range(2):
        k = sgpa.Head(layer, x[0], h).k
        error = torch.outer(k.diagonal(), k.diagonal()).sqrt() * (2 / number) ** 0.5
        for d in range(3):
            assert ((f[:, :, h, d].T.cov() - k).abs() < 5 * error).all()


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"heads": 1}, (2, 5, 6)),
        ({}, (1, 5, 6)),
        ({}, (2, 1, 6)),
        ({"inducing": 1}, (2, 5, 6)),
        ({"inducing": 9}, (2, 2, 6)),
        ({"heads": 6, "dim": 12}, (2, 5, 12)),
        ({"inducing": None, "heads": 1}, (1, 1, 6)),
    ],
)
@DRAWS
def test_corner_shapes(sgpa, options, shape, how):
    layer = sgpa.make(draws=how, **options)
    x, u = randn(*shape), {}
    g = randn(shape[0], layer.heads, shape[1], layer.head_dim, seed=2)
    if layer.inducing:
        u = {"u": randn(layer.heads, layer.head_dim, layer.inducing, seed=1)}
    output = sgpa.run(layer, x, g=g, **u).nodes["_RETURN"]["value"]
    _, posterior = sgpa.law(sgpa.run(layer, x, **u))
    for b, heads in enumerate(sgpa.heads_of(layer, x)):
        columns = []
        for h, head in enumerate(heads):
            assert_close(posterior.mean[b, h], head.mean)
            f = g[b, h]
            columns.append(f + head.project @ head.tril @ u["u"][h].T if u else f)
        assert_close(output[b], layer.out(torch.cat(columns, dim=-1)))


@FORMS
@DRAWS
def test_leading_draws_and_strides(sgpa, how, inducing):
    """Draw s of x belongs to draw s of u; a view of another layout gives the same."""
    layer = sgpa.make(inducing=inducing, draws=how)
    x, g = randn(4, 2, 5, 6), randn(4, 2, 2, 5, 3, seed=2)
    u = randn(4, 1, 2, 3, 3, seed=1)
    extra = {} if inducing is None else {"u": u}
    together = sgpa.run(layer, x, MASK, g=g, **extra).nodes["_RETURN"]["value"]
    strided = x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    assert not strided.is_contiguous()
    assert_close(sgpa.run(layer, strided, MASK, g=g, **extra).nodes["_RETURN"]["value"], together)
    for s in range(4):
        extra = {} if inducing is None else {"u": u[s, 0]}
        assert_close(sgpa.run(layer, x[s], MASK, g=g[s], **extra).nodes["_RETURN"]["value"], together[s])


@FORMS
@pytest.mark.parametrize("batch", [1, 4, 5])
def test_draws_are_a_leading_dimension_whatever_the_batch(sgpa, inducing, batch):
    layer = sgpa.make(inducing=inducing)
    guide, x = guides.for_model(layer), randn(batch, 5, 6)
    with draws(4):
        guide_trace = poutine.trace(guide).get_trace(x)
        with local_posteriors():
            trace = poutine.trace(poutine.replay(layer, guide_trace)).get_trace(x)
    g = trace.nodes["g"]["value"]
    assert g.shape == (4, batch, 2, 5, 3)
    assert len(g[:, 0, 0, 0, 0].unique()) == 4
    for s in range(4):
        u = {} if inducing is None else {"u": guide_trace.nodes["u"]["value"][s, 0]}
        assert_close(trace.nodes["_RETURN"]["value"][s], sgpa.run(layer, x, g=g[s], **u).nodes["_RETURN"]["value"])


@pytest.mark.parametrize("prior", ["normal", "laplace", "student_t"])
def test_the_prior_of_u_has_scale_one_and_the_event_of_heads_outputs_and_inducing_inputs(sgpa, prior):
    site = sgpa.make(prior=prior).sites()["u"]
    u = randn(2, 3, 3)
    one = {
        "normal": torch.distributions.Normal(0, 1),
        "laplace": torch.distributions.Laplace(0, 1),
        "student_t": torch.distributions.StudentT(4.0),
    }[prior]
    assert_close(site.log_prob(u), one.log_prob(u).sum())
    assert site.event_shape == (2, 3, 3)
    assert sgpa.make(inducing=None).sites() == {}


@pytest.mark.parametrize("kind", ["ard", "exponential"])
@FORMS
def test_attention_matrix_is_the_kernel_between_tokens(sgpa, kind, inducing):
    layer, x = sgpa.make(kernel=kind, inducing=inducing, bias=True), randn(2, 5, 6)
    expected = torch.stack([torch.stack([head.k for head in row]) for row in sgpa.heads_of(layer, x)])
    assert_close(layer.attention_matrix(x), expected)
    masked = layer.attention_matrix(x.where(MASK.unsqueeze(-1), torch.nan), MASK)
    assert_close(masked, expected * (MASK[:, None, :, None] & MASK[:, None, None, :]))


def test_predictions_are_draws_of_one_function_and_tell_prior_from_posterior(sgpa):
    model, guide = sgpa.build()
    x = randn(4, 5, 6)
    result = predict(model, guide, [x[:2], x[2:]], num_samples=6, keep_draws=True)
    assert result.draws.shape == (6, 4, 3)
    assert len(result.draws[:, 0, 0].unique()) == 6
    with torch.no_grad():
        for layer in model.network.layers:
            layer.query_value.weight[6:] *= 30
    posterior, prior = (predict(model, each, x, num_samples=200) for each in (guide, None))
    assert (posterior.probs - prior.probs).abs().max() > 0.1


def test_u_of_two_layers_in_one_program_have_their_own_sites(sgpa):
    pair = nn.Sequential(sgpa.make(), sgpa.make(seed=1))
    name_layers(pair)
    trace = poutine.trace(pair).get_trace(randn(2, 5, 6))
    assert {"0.u", "1.u", "0.g", "1.g"} <= set(trace.nodes)
