"""The SGPA layer as a program: MATH in loops, its law under the guide, both ELBOs, masks, carried inducing inputs."""

import copy
import math

import pyro.poutine as poutine
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from pyro.nn import PyroModule
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probattn import KEPSVGPAttention, NumericalError, SGPAttention, draws, families, guides, local_sites, priors
from probattn.attention import sgpa_forms
from probattn.handlers import at_mean, local_posteriors
from probattn.inference import Trace_ELBO, TraceMeanField_ELBO, predict
from probattn.models import Classifier, Supervised, ViT, last
from probattn.models.likelihoods import Categorical

F64 = torch.float64
ELBOS = pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
DRAWS = pytest.mark.parametrize("how", ["marginal", "joint"])
FORMS = pytest.mark.parametrize("inducing", [3, None])
MASK = torch.tensor([[True] * 5, [True, False, True, True, False]])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def make(dim=6, heads=2, *, seed=0, **options):
    torch.manual_seed(seed)
    layer = SGPAttention(dim, heads, **{"inducing": 3, **options}).double()
    with torch.no_grad():
        for name, parameter in layer.kernel.named_parameters():
            parameter += 0.3 * randn(*parameter.shape, seed=len(name))
    return layer


def unprojected(**options):
    """A layer whose last map is the identity."""
    layer = make(**options)
    with torch.no_grad():
        nn.init.eye_(layer.out.weight)
        nn.init.zeros_(layer.out.bias)
    return layer


def kernel(layer, h, a, b):
    """The kernel of one head in loops."""
    state = {name: value.detach() for name, value in layer.kernel.named_parameters()}
    lengthscale = state["log_lengthscale"][h].exp() if state else torch.ones(a.shape[-1], dtype=F64)
    variance = state["log_variance"][h].exp() if state else 1.0
    exponential = type(layer.kernel).__name__ == "Exponential"
    matrix = torch.empty(len(a), len(b), dtype=F64)
    for i in range(len(a)):
        for j in range(len(b)):
            if exponential:
                matrix[i, j] = torch.exp((a[i] * b[j] / lengthscale**2).sum())
            else:
                matrix[i, j] = torch.exp(-0.5 * (((a[i] - b[j]) / lengthscale) ** 2).sum())
    return variance * matrix


class Head:
    """Everything MATH says of one head of one example, at its real tokens, with inverses."""

    def __init__(self, layer, x, h):
        state = {name: value.detach() for name, value in layer.named_parameters()}
        width, weight = layer.head_dim, state["query_value.weight"]
        bias = state.get("query_value.bias", torch.zeros(2 * layer.dim, dtype=F64))
        part, other = slice(h * width, (h + 1) * width), slice(layer.dim + h * width, layer.dim + (h + 1) * width)
        self.q, self.v = x @ weight[part].T + bias[part], x @ weight[other].T + bias[other]
        self.k = kernel(layer, h, self.q, self.q)
        if layer.inducing is None:
            spread = x @ state["form.spread.weight"][h] + state["form.spread.bias"][h]
            root = torch.linalg.cholesky(self.k)
            self.s = root @ torch.diag((1e-3 + torch.log1p(spread.exp())) ** 2) @ root.T
            self.c, self.project = self.k, None
            self.posterior = self.s
            self.kl = sum(
                kl_divergence(
                    MultivariateNormal(self.k @ self.v[:, d], self.s),
                    MultivariateNormal(torch.zeros(len(x), dtype=F64), self.k),
                )
                for d in range(width)
            )
        else:
            beta = state["form.inducing"][h] @ weight[part].T + bias[part]
            k_qb, self.k_bb = kernel(layer, h, self.q, beta), kernel(layer, h, beta, beta)
            self.tril = torch.linalg.cholesky(self.k_bb)
            self.project = k_qb @ torch.linalg.inv(self.k_bb)
            self.c = self.k - self.project @ k_qb.T
            self.posterior = self.c
            self.kl = 0.5 * torch.trace(self.v.T @ self.c @ self.v)
        self.mean = self.c @ self.v


def heads_of(layer, x, mask=None):
    """``[example][head]``."""
    masks = [slice(None)] * len(x) if mask is None else mask
    return [[Head(layer, row[real], h) for h in range(layer.heads)] for row, real in zip(x, masks, strict=True)]


def run(layer, x, mask=None, **values):
    """The trace of the layer given some of its sites."""
    with local_sites(batch=x.shape[-3], num_data=x.shape[-3]):
        return poutine.trace(poutine.condition(layer, data=values)).get_trace(x, mask)


def law(trace):
    """Prior and posterior of g."""
    return trace.nodes["g"]["fn"], trace.nodes["g"]["infer"]["posterior"]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["ard", "exponential", "rbf"])
@FORMS
@DRAWS
def test_layer_is_math_in_loops(how, inducing, kind, bias, masked):
    """Output given u and g; mean, variance, covariance and KL of g under prior and posterior."""
    layer = make(inducing=inducing, kernel=kind, draws=how, bias=bias)
    x, g = randn(2, 5, 6), randn(2, 2, 5, 3, seed=2)
    mask = MASK if masked else None
    u = {} if inducing is None else {"u": randn(2, 3, 3, seed=1)}
    output = run(layer, x, mask, g=g, **u).nodes["_RETURN"]["value"]
    prior, posterior = law(run(layer, x, mask, **u))
    kl = kl_divergence(posterior, prior)
    for b, heads in enumerate(heads_of(layer, x, mask)):
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
def test_law_of_the_draws_under_the_guide(how, inducing):
    """Many u and g: moments of f against the formula's mean and covariance, or its diagonal for marginal draws of g."""
    layer = unprojected(inducing=inducing, draws=how)
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
        head = Head(layer, x[0], h)
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


def test_prior_of_the_program_is_the_kernel():
    """Without a guide, f ~ N(0, K) for joint draws: u from its prior, g from N(0, C)."""
    layer, x, number = unprojected(draws="joint"), randn(1, 4, 6), 40_000
    torch.manual_seed(1)
    with torch.no_grad(), draws(number):
        f = layer(x)[:, 0].unflatten(-1, (2, 3))
    for h in range(2):
        k = Head(layer, x[0], h).k
        error = torch.outer(k.diagonal(), k.diagonal()).sqrt() * (2 / number) ** 0.5
        for d in range(3):
            assert ((f[:, :, h, d].T.cov() - k).abs() < 5 * error).all()


class Pooled(PyroModule):
    """Two layers and a head over the mean of the real tokens."""

    def __init__(self, *layers, outputs=3):
        super().__init__()
        self.layers = PyroModule[nn.ModuleList](layers)
        self.head = nn.Linear(layers[0].dim, outputs)

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = x + layer(x, mask)
        if mask is None:
            return self.head(x.mean(-2))
        real = mask.unsqueeze(-1)
        return self.head(x.where(real, 0.0).sum(-2) / real.sum(-2))


def build(*, num_data=12, family="full", layers=2, **options):
    model = Classifier(Pooled(*(make(seed=i, **options) for i in range(layers))).double(), num_data=num_data).double()
    return model, guides.for_model(model, family)


@ELBOS
@FORMS
@DRAWS
def test_terms_of_the_loss_are_maths(how, inducing, elbo):
    """KL of u once, KL of g for every example times N/B; Trace_ELBO takes log densities of joint draws at the mean."""
    model, guide = build(layers=1, inducing=inducing, draws=how, num_data=10)
    x, y = randn(2, 5, 6), torch.tensor([0, 2])
    layer, objective = model.network.layers[0], elbo()
    with at_mean() if elbo is Trace_ELBO else poutine.block(hide=[]):
        objective(model, guide)(x, y)
    heads, expected = heads_of(layer, x), 0.0
    for head in (head for row in heads for head in row):
        if elbo is Trace_ELBO and how == "joint":
            for mean in head.mean.T:
                q, p = MultivariateNormal(mean, head.posterior), MultivariateNormal(torch.zeros_like(mean), head.c)
                expected += 10 / 2 * (q.log_prob(mean) - p.log_prob(mean))
        else:
            expected += 10 / 2 * head.kl
    assert_close(objective.terms()["kl/network.layers.0.g"], expected.item())
    if inducing is not None and elbo is TraceMeanField_ELBO:
        u, total = guide.get_submodule("network.layers.0.u"), 0.0
        for h, head in enumerate(heads[0]):
            for d in range(3):
                t, v = u.scale_tril[h, d], torch.linalg.solve(head.tril.T, u.loc[h, d])
                total += 0.5 * (torch.trace(t @ t.T) - torch.logdet(t @ t.T) - 3 + v @ head.k_bb @ v)
        assert_close(objective.terms()["kl/network.layers.0.u"], total.item())


@ELBOS
@FORMS
def test_marginal_draws_keep_the_joint_kl_at_every_draw(inducing, elbo):
    model, guide = build(layers=1, inducing=inducing, num_data=2)
    x, y = randn(2, 5, 6), torch.tensor([0, 2])
    expected = sum(head.kl for row in heads_of(model.network.layers[0], x) for head in row)
    for number in (None, "example", 4):
        objective = elbo()
        with draws(number) if number else poutine.block(hide=[]):
            loss = objective(model, guide)(x, y)
        assert_close(objective.terms()["kl/network.layers.0.g"], expected.item())
        assert math.isclose(sum(objective.terms().values()), loss.item(), rel_tol=1e-10)


@FORMS
@DRAWS
def test_both_elbos_have_the_same_expected_loss(how, inducing):
    model, guide = build(inducing=inducing, draws=how)
    x, y = randn(2, 5, 6), torch.tensor([0, 2])
    means, errors = [], []
    for elbo in (Trace_ELBO, TraceMeanField_ELBO):
        torch.manual_seed(0)
        with torch.no_grad():
            losses = []
            for _ in range(12):
                with draws(200):
                    losses.append(elbo()(model, guide)(x, y))
        losses = torch.stack(losses)
        means.append(losses.mean())
        errors.append(losses.var() / len(losses))
    assert (means[0] - means[1]).abs() < 4.5 * sum(errors).sqrt()


@ELBOS
@FORMS
@DRAWS
def test_padding_changes_no_loss(how, inducing, elbo):
    """The loss of a padded batch, all sites at their means, is the mean of its sentences alone; padding may be NaN."""
    model, guide = build(inducing=inducing, draws=how, bias=True)
    x, y = randn(2, 5, 6), torch.tensor([0, 2])
    with at_mean():
        alone = [elbo()(model, guide)(x[b : b + 1, MASK[b]], y[b : b + 1]) for b in range(2)]
        together = elbo()(model, guide)(x.where(MASK.unsqueeze(-1), torch.nan), y, MASK)
    assert_close(together, sum(alone) / 2)
    together.backward()
    for name, parameter in [*model.named_parameters(), *guide.named_parameters()]:
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@FORMS
@DRAWS
def test_padding_changes_no_law_of_a_real_token(how, inducing):
    layer, u = make(inducing=inducing, draws=how, bias=True), {} if inducing is None else {"u": randn(2, 3, 3, seed=1)}
    x, g = randn(2, 5, 6), randn(2, 2, 5, 3, seed=2)
    padded = torch.cat((x, 100 * randn(2, 3, 6, seed=4)), dim=1)
    mask = torch.cat((MASK, torch.zeros(2, 3, dtype=torch.bool)), dim=1)
    wide = torch.cat((g, randn(2, 2, 3, 3, seed=5)), dim=2)
    output = run(layer, padded, mask, g=wide, **u).nodes["_RETURN"]["value"]
    together = law(run(layer, padded, mask, **u))
    for b in range(2):
        real = MASK[b]
        alone = run(layer, x[b : b + 1, real], g=g[b : b + 1, :, real], **u).nodes["_RETURN"]["value"]
        assert_close(output[b, :5][real], alone[0])
        for whole, part in zip(together, law(run(layer, x[b : b + 1, real], **u)), strict=True):
            assert_close(whole.mean[b, :, :5][:, real], part.mean[0])
            assert_close(whole.variance[b, :, :5][:, real], part.variance[0])
            if how == "joint":
                tril = whole.covariance.tril[b, :, :5, :5][:, real][:, :, real]
                assert_close(tril, part.covariance.tril[0])
        assert_close(
            kl_divergence(*together[::-1])[b], kl_divergence(*law(run(layer, x[b : b + 1, real], **u))[::-1])[0]
        )


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
def test_corner_shapes(options, shape, how):
    layer = make(draws=how, **options)
    x, u = randn(*shape), {}
    g = randn(shape[0], layer.heads, shape[1], layer.head_dim, seed=2)
    if layer.inducing:
        u = {"u": randn(layer.heads, layer.head_dim, layer.inducing, seed=1)}
    output = run(layer, x, g=g, **u).nodes["_RETURN"]["value"]
    _, posterior = law(run(layer, x, **u))
    for b, heads in enumerate(heads_of(layer, x)):
        columns = []
        for h, head in enumerate(heads):
            assert_close(posterior.mean[b, h], head.mean)
            f = g[b, h]
            columns.append(f + head.project @ head.tril @ u["u"][h].T if u else f)
        assert_close(output[b], layer.out(torch.cat(columns, dim=-1)))


@FORMS
@DRAWS
def test_leading_draws_and_strides(how, inducing):
    """Draw s of x belongs to draw s of u; a view of another layout gives the same."""
    layer = make(inducing=inducing, draws=how)
    x, g = randn(4, 2, 5, 6), randn(4, 2, 2, 5, 3, seed=2)
    u = randn(4, 1, 2, 3, 3, seed=1)
    extra = {} if inducing is None else {"u": u}
    together = run(layer, x, MASK, g=g, **extra).nodes["_RETURN"]["value"]
    strided = x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    assert not strided.is_contiguous()
    assert_close(run(layer, strided, MASK, g=g, **extra).nodes["_RETURN"]["value"], together)
    for s in range(4):
        extra = {} if inducing is None else {"u": u[s, 0]}
        assert_close(run(layer, x[s], MASK, g=g[s], **extra).nodes["_RETURN"]["value"], together[s])


@FORMS
@pytest.mark.parametrize("batch", [1, 4, 5])
def test_draws_are_a_leading_dimension_whatever_the_batch(inducing, batch):
    layer = make(inducing=inducing)
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
        assert_close(trace.nodes["_RETURN"]["value"][s], run(layer, x, g=g[s], **u).nodes["_RETURN"]["value"])


@FORMS
@DRAWS
@pytest.mark.parametrize("kind", ["ard", "exponential", "rbf"])
@ELBOS
def test_every_parameter_gets_a_gradient(kind, inducing, how, elbo):
    model, guide = build(inducing=inducing, draws=how, kernel=kind, bias=True)
    with draws("example"):
        elbo()(model, guide)(randn(4, 5, 6), torch.tensor([0, 1, 2, 0])).backward()
    parameters = [*model.named_parameters(), *guide.named_parameters()]
    missing = [name for name, p in parameters if p.grad is None or not p.grad.abs().sum() > 0]
    assert missing == []
    for name, parameter in parameters:
        assert parameter.grad.isfinite().all(), name


@FORMS
@DRAWS
def test_gradcheck_of_the_layer_and_its_kl(how, inducing):
    layer = make(dim=4, inducing=inducing and 2, draws=how)
    x = randn(1, 3, 4).requires_grad_()
    names = [name for name, _ in layer.named_parameters()]
    u = {} if inducing is None else {"u": randn(2, 2, 2, seed=1)}

    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            torch.manual_seed(3)
            with local_posteriors():
                trace = poutine.trace(poutine.condition(self.layer, data=u)).get_trace(x)
            node = trace.nodes["g"]
            kl = kl_divergence(node["infer"]["posterior"], node["fn"])
            return trace.nodes["_RETURN"]["value"], kl, node["fn"].log_prob(node["value"])

    program = Program()

    def function(x, *parameters):
        values = {f"layer.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(program, values, (x,))

    parameters = tuple(parameter.detach().requires_grad_() for parameter in layer.parameters())
    assert torch.autograd.gradcheck(function, (x, *parameters))


@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("prior", priors.PRIORS)
def test_every_prior_trains_with_every_family(prior, family):
    model, guide = build(prior=prior, family=family)
    x, y = randn(4, 5, 6), torch.tensor([0, 1, 2, 0])
    elbo = TraceMeanField_ELBO()(model, guide)
    optimiser = torch.optim.Adam(elbo.parameters(), lr=0.05)
    torch.manual_seed(0)
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        with draws("example"):
            loss = elbo(x, y) / 12
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in elbo.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < sum(losses[:3]) - 0.3


@pytest.mark.parametrize("prior", ["normal", "laplace", "student_t"])
def test_the_prior_of_u_has_scale_one_and_the_event_of_heads_outputs_and_inducing_inputs(prior):
    site = make(prior=prior).sites()["u"]
    u = randn(2, 3, 3)
    one = {
        "normal": torch.distributions.Normal(0, 1),
        "laplace": torch.distributions.Laplace(0, 1),
        "student_t": torch.distributions.StudentT(4.0),
    }[prior]
    assert_close(site.log_prob(u), one.log_prob(u).sum())
    assert site.event_shape == (2, 3, 3)
    assert make(inducing=None).sites() == {}


@pytest.mark.parametrize("auto", [AutoNormal, AutoMultivariateNormal])
@ELBOS
def test_autoguides_guide_the_global_part(auto, elbo):
    model, _ = build()
    x, y = randn(4, 5, 6), torch.tensor([0, 1, 2, 0])
    guide = auto(guides.global_part(model))
    guides.materialise(guide, (x, y))
    guides.check(model, guide)
    guide.double()
    latents = set(guide(x, y))
    assert {name for name in latents if name.startswith("network")} == {f"network.layers.{i}.u" for i in (0, 1)}
    objective = elbo()
    with draws("example"):
        loss = objective(model, guide)(x, y)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in [*model.parameters(), *guide.parameters()])
    assert {f"kl/network.layers.{i}.{site}" for i in (0, 1) for site in "ug"} <= set(objective.terms())
    heads = heads_of(model.network.layers[0], x)
    expected = 12 / 4 * sum(head.kl for row in heads for head in row)
    assert_close(objective.terms()["kl/network.layers.0.g"], expected.item())
    assert predict(model, guide, x, num_samples=3).probs.shape == (4, 3)


def test_an_autoguide_of_the_local_sites_is_refused_with_the_way_out():
    model, _ = build()
    model.float()
    x, y = torch.randn(4, 5, 6), torch.tensor([0, 1, 2, 0])
    guide = AutoNormal(model)
    with pytest.raises(ValueError, match=r"network\.layers\.0\.g.*AutoNormal\(guides\.global_part\(model\)\)"):
        guides.materialise(guide, (x, y))
    with pytest.raises(ValueError, match="global_part"):
        guides.check(model, guide)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 7}, "multiple of heads"),
        ({"inducing": 0}, "positive number, or None.*got 0"),
        ({"inducing": -2}, "positive number, or None.*got -2"),
        ({"draws": "mean"}, "marginal, joint, got 'mean'"),
        ({"kernel": "cosine"}, "rbf, ard, exponential, got 'cosine'"),
        ({"prior": "cauchy"}, "normal, laplace, student_t"),
        ({"inducing": None, "prior": "laplace"}, "no global site"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        (randn(2, 5, 5), None, "project x first"),
        (randn(5, 6), None, "batch, tokens, 6"),
        (randn(2, 5, 6), torch.ones(2, 4).bool(), "boolean mask"),
        (randn(2, 5, 6), torch.ones(2, 5), "boolean mask"),
        (randn(2, 5, 6), torch.tensor([[True] * 5, [False] * 5]), r"rows \[1\]"),
    ],
)
def test_bad_input_is_named(x, mask, message):
    with pytest.raises(ValueError, match=message):
        make()(x, mask)


@pytest.mark.parametrize(
    ("broken", "what"), [("x", "kernel of the tokens"), ("form.inducing", "K_ββ"), ("query_value.weight", "values")]
)
def test_broken_numbers_are_errors_that_name_layer_and_matrix(broken, what):
    model, _ = build()
    x, layer = randn(2, 5, 6), model.network.layers[1]
    with torch.no_grad():
        if broken == "x":
            layer.query_value.weight[0, 0] = torch.nan
        elif broken == "form.inducing":
            layer.form.inducing[0, 0, 0] = torch.nan
        else:
            layer.query_value.weight[-1, 0] = torch.nan
    with pytest.raises(NumericalError, match=rf"SGPAttention 'network\.layers\.1'.*{what}"):
        model(x)


def test_an_exponential_kernel_that_overflows_at_one_inducing_input_is_an_error_and_not_a_dropped_input():
    layer = make(kernel="exponential").float()
    with torch.no_grad():
        layer.form.inducing[0, 0] *= 60
    beta = layer.inducing_points()
    assert torch.isinf(layer.kernel(beta, beta)).any()
    with pytest.raises(NumericalError, match="K_ββ.*NaN or Inf"):
        layer(torch.randn(2, 5, 6))


@pytest.mark.filterwarnings("ignore::probattn.JitterWarning")
def test_joint_draws_survive_inducing_inputs_that_explain_every_token():
    """C is then rounding about 0, with eigenvalues below it: what it may be moved by is a share of the kernel."""
    for seed in range(3):
        layer = make(seed=seed, draws="joint", inducing=16).float()
        x = torch.randn(4, 4, 6, generator=torch.Generator().manual_seed(seed))
        layer.initialise(x)
        with torch.no_grad():
            layer.kernel.log_lengthscale += 2.0
        _, posterior = law(run(layer, x))
        assert posterior.covariance.tril.isfinite().all()
        assert posterior.variance.max() < 0.1


def test_signatures_differ_wherever_the_program_does():
    variants = [{}, {"inducing": 4}, {"inducing": None}, {"draws": "joint"}, {"kernel": "rbf"}, {"prior": "laplace"}]
    signatures = [tuple(sorted(make(**options).signature().items())) for options in variants]
    assert len(set(signatures)) == len(variants)


@pytest.mark.parametrize("kind", ["ard", "exponential"])
@FORMS
def test_attention_matrix_is_the_kernel_between_tokens(kind, inducing):
    layer, x = make(kernel=kind, inducing=inducing, bias=True), randn(2, 5, 6)
    expected = torch.stack([torch.stack([head.k for head in row]) for row in heads_of(layer, x)])
    assert_close(layer.attention_matrix(x), expected)
    masked = layer.attention_matrix(x.where(MASK.unsqueeze(-1), torch.nan), MASK)
    assert_close(masked, expected * (MASK[:, None, :, None] & MASK[:, None, None, :]))


def test_under_autocast_kernel_densities_and_draws_stay_in_float32():
    model, guide = build(draws="joint")
    model, guide = model.float(), guide.float()
    x, y, objective = torch.randn(4, 5, 6), torch.tensor([0, 1, 2, 0]), TraceMeanField_ELBO()
    losses = []
    for half in (False, True):
        with at_mean(), torch.autocast("cpu", torch.bfloat16, enabled=half):
            losses.append(objective(model, guide)(x, y))
    assert_close(losses[1], losses[0], rtol=3e-2, atol=0.3)
    for trace in objective.traces:
        for name, node in trace.nodes.items():
            if node["type"] == "sample" and name.endswith(".g"):
                assert node["value"].dtype == torch.float32
                assert node["fn"].log_prob(node["value"]).dtype == torch.float32


SIZES = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 6, "heads": 2, "mlp_dim": 8}
STOCHASTIC = SGPAttention.partial(inducing=3)


def vit(depth=3, attention=STOCHASTIC, **options):
    torch.manual_seed(0)
    network = ViT(**SIZES, depth=depth, attention=attention, **options).double()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "norm" in name:
                parameter += 0.3 * torch.randn_like(parameter)
    return network


def norm(x, module):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.weight + module.bias


def carried(network, i):
    """β of layer i by hand: the MLP half of the block below, this block's norm, then W_q of each head."""
    beta, layer = network.blocks[i].attention.form.inducing, network.blocks[i].attention
    if i > 0:
        below = network.blocks[i - 1]
        first, second = below.mlp[0], below.mlp[3]
        hidden = norm(beta, below.norm_mlp) @ first.weight.T + first.bias
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
        beta = beta + hidden @ second.weight.T + second.bias
    beta = norm(beta, network.blocks[i].norm_attention)
    return torch.stack([beta[h] @ layer.query_value.weight[3 * h : 3 * h + 3].T for h in range(2)])


@pytest.mark.parametrize("top", [3, 2, 1])
def test_inducing_inputs_pass_through_the_block_below_and_this_blocks_norm(top):
    network = vit(attention=last(top, STOCHASTIC, of=3))
    for i in range(3 - top, 3):
        points = network.blocks[i].attention.inducing_points()
        assert_close(points, carried(network, i))
        gradients = torch.autograd.grad(points.square().sum(), list(network.parameters()), allow_unused=True)
        named = zip(dict(network.named_parameters()), gradients, strict=True)
        reached = {name for name, gradient in named if gradient is not None and gradient.abs().sum() > 0}
        own = {f"blocks.{i}.attention.form.inducing", f"blocks.{i}.attention.query_value.weight"}
        own |= {f"blocks.{i}.norm_attention.{part}" for part in ("weight", "bias")}
        if i > 0:
            parts = ("norm_mlp", "mlp.0", "mlp.3")
            own |= {f"blocks.{i - 1}.{part}.{kind}" for part in parts for kind in ("weight", "bias")}
        assert reached == own


def test_a_token_that_is_an_inducing_input_is_explained_by_it():
    """A vector of the stream and the inducing input that equals it arrive at one point: C is 0 there."""
    network, images = vit(), randn(2, 1, 4, 4)
    tokens = network.tokens(images)
    with torch.no_grad():
        network.blocks[0].attention.form.inducing.copy_(tokens[0, :3].expand(2, 3, 6))
    block = network.blocks[0]
    with local_sites(batch=2, num_data=2):
        trace = poutine.trace(block.attention).get_trace(norm(tokens, block.norm_attention))
    posterior = trace.nodes["blocks.0.attention.g"]["infer"]["posterior"]
    assert posterior.variance[0, :, :3].max() < 1e-10
    assert posterior.variance[0, :, 3].min() > 1e-3


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("lower", [SGPAttention.partial(inducing=9), KEPSVGPAttention.partial(rank=2)])
def test_initialise_inducing_takes_vectors_of_the_stream(lower, training, monkeypatch):
    """Each inducing input is near one token's vector at that place, with draws in the layers below, and no dropout."""
    network = vit(attention=[lower, STOCHASTIC, SGPAttention.partial(inducing=5)], dropout=0.5)
    network.train(training)
    images, streams = randn(3, 1, 4, 4), [None, None, None]
    for i in (1, 2):
        network.blocks[i - 1].norm_mlp.register_forward_pre_hook(
            lambda module, inputs, i=i: streams.__setitem__(i, inputs[0]) if inputs[0].shape[-2] == 4 else None
        )
    before = {name: p.clone() for name, p in network.named_parameters() if not name.endswith("form.inducing")}
    network.initialise_inducing(images)
    assert all(module.training is training for module in network.modules())
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters() if name in before)
    network.eval()
    streams[0] = network.tokens(images)
    for i, block in enumerate(network.blocks):
        if not isinstance(block.attention, SGPAttention):
            continue
        vectors, rows = block.attention.form.inducing.detach(), streams[i].detach().reshape(-1, 6)
        distance = (vectors.unsqueeze(-2) - rows).abs().amax(-1)
        assert distance.amin(-1).max() < 6e-2 * rows.std()
        picked = distance.argmin(-1)
        assert all(len(head.unique()) == block.attention.inducing for head in picked)
        assert not torch.equal(picked[0].sort().values, picked[1].sort().values) or i == 0
        assert vectors.requires_grad is False
        assert block.attention.form.inducing.requires_grad


def test_initialise_inducing_under_draws_and_without_inducing_inputs():
    network = vit()
    with draws(5):
        network.initialise_inducing(randn(2, 1, 4, 4))
    assert network.blocks[2].attention.form.inducing.shape == (2, 3, 6)
    standard = vit(attention=SGPAttention.partial(inducing=None))
    before = {name: p.clone() for name, p in standard.named_parameters()}
    standard.initialise_inducing(randn(2, 1, 4, 4))
    assert all(torch.equal(p, before[name]) for name, p in standard.named_parameters())


def test_initialise_inducing_leaves_a_frozen_parts_mode_alone():
    network = vit().train()
    network.blocks[0].eval()
    network.initialise_inducing(randn(2, 1, 4, 4))
    assert network.training
    assert network.blocks[1].training
    assert not any(module.training for module in network.blocks[0].modules())


def test_initialise_inducing_refuses_wrong_images_and_keeps_the_mode():
    network = vit().train()
    with pytest.raises(ValueError, match="takes images"):
        network.initialise_inducing(randn(2, 3, 4, 4))
    assert all(module.training for module in network.modules())


def test_deep_copies_keep_the_path_inside_the_copy():
    model = Classifier(vit(), num_data=4).double()
    guide = guides.for_model(model)
    copied, copied_guide = copy.deepcopy((model, guide))
    assert list(copied.state_dict()) == list(model.state_dict())
    assert len({id(p) for p in copied.parameters()}) == len(list(copied.state_dict()))
    assert not any("path" in name for name in model.state_dict())
    images, y = randn(2, 1, 4, 4), torch.tensor([0, 2])
    TraceMeanField_ELBO()(copied, copied_guide)(images, y).backward()
    assert all(p.grad is None for p in [*model.parameters(), *guide.parameters()])
    assert all(p.grad.abs().sum() > 0 for p in copied.parameters())
    layers = [each.network.blocks[2].attention for each in (model, copied)]
    points = layers[1].inducing_points().detach()
    with torch.no_grad():
        model.network.blocks[1].mlp[0].weight.mul_(3)
        model.network.blocks[2].norm_attention.weight.mul_(3)
    assert torch.equal(layers[1].inducing_points(), points)
    with torch.no_grad():
        copied.network.blocks[1].mlp[0].weight.mul_(3)
    assert not torch.equal(layers[1].inducing_points(), points)


def test_state_dicts_carry_the_inducing_inputs_to_a_new_network():
    first, second = vit(), vit()
    with torch.no_grad():
        for parameter in first.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    second.load_state_dict(first.state_dict())
    for i in range(3):
        points = [network.blocks[i].attention.inducing_points() for network in (first, second)]
        assert torch.equal(*points)


def test_predictions_are_draws_of_one_function_and_tell_prior_from_posterior():
    model, guide = build()
    x = randn(4, 5, 6)
    result = predict(model, guide, [x[:2], x[2:]], num_samples=6, keep_draws=True)
    assert result.draws.shape == (6, 4, 3)
    assert len(result.draws[:, 0, 0].unique()) == 6
    with torch.no_grad():
        for layer in model.network.layers:
            layer.query_value.weight[6:] *= 30
    posterior, prior = (predict(model, each, x, num_samples=200) for each in (guide, None))
    assert (posterior.probs - prior.probs).abs().max() > 0.1


def test_u_of_two_layers_in_one_program_have_their_own_sites():
    pair = PyroModule[nn.Sequential](make(), make(seed=1))
    trace = poutine.trace(pair).get_trace(randn(2, 5, 6))
    assert {"0.u", "1.u", "0.g", "1.g"} <= set(trace.nodes)


def test_a_supervised_model_of_sentences_takes_the_mask_through_the_layer():
    network = Pooled(make(bias=True), make(seed=1)).double()
    model = Supervised(network, Categorical(), num_data=8).double()
    guide = guides.for_model(model)
    with at_mean():
        together = predict(model, guide, [(randn(2, 5, 6), torch.tensor([0, 1]), MASK)], num_samples=1)
        for b in range(2):
            alone = predict(model, guide, randn(2, 5, 6)[b : b + 1, MASK[b]], num_samples=1)
            assert_close(together.probs[b], alone.probs[0])


@pytest.mark.parametrize("which", ["mean", "spread"])
def test_marginals_that_are_not_finite_are_refused_by_name(which):
    mean, scale = torch.zeros(1, 2, 3, 4), torch.ones(1, 2, 3)
    {"mean": mean, "spread": scale}[which][0, 1, 2] = torch.inf
    with pytest.raises(NumericalError, match=rf"the {which} of q\(f\): NaN or Inf"):
        sgpa_forms._marginals(mean, torch.ones_like(scale), scale, torch.zeros(1))
