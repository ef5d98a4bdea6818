"""Idioms of Pyro, each as a Pyro user writes it, on layers of this library; values against conjugate posteriors."""

import copy
import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.distributions import constraints
from pyro.infer import (
    HMC,
    MCMC,
    NUTS,
    SVI,
    JitTrace_ELBO,
    Predictive,
    RenyiELBO,
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    autoguide,
)
from pyro.infer.reparam import LocScaleReparam
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import nn
from torch.testing import assert_close

import probattn
from probattn import CGPAttention, KEPSVGPAttention, SGPAttention, draws, families, guides, inference, priors
from probattn.inference import fit, posterior_predictive_check, predict, sgld
from probattn.models import Classifier, Supervised

N, SIGMA = 12, 0.4


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()


class Regression(PyroModule):
    """y ~ N(w · attention(x), σ²) with fixed weights: linear in u, so that everything has a closed form."""

    num_data = N

    def __init__(self, **options):
        super().__init__()
        self.attention = KEPSVGPAttention(4, 1, rank=2, eta=0.0, scale=1.5, **options)
        self.requires_grad_(False).eval()

    def mean(self, x):
        return 3 * self.attention(x).mean((-2, -1))

    def forward(self, x, y=None):
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(self.mean(x), SIGMA), obs=y)


def conjugate(model, x, y):
    """Evidence, posterior mean and precision of vec(u), and the map u -> mean as (features, intercept)."""
    size, scale = 4, model.attention.sites()["u"].stddev.flatten().detach()

    def mean(u):
        return poutine.condition(model.mean, data={"attention.u": u.view(1, 2, 2)})(x)

    features = torch.autograd.functional.jacobian(mean, torch.zeros(size))
    intercept = mean(torch.zeros(size)).detach()
    covariance = SIGMA**2 * torch.eye(len(y)) + features @ scale.square().diag() @ features.T
    evidence = torch.distributions.MultivariateNormal(intercept, covariance).log_prob(y)
    precision = scale.pow(-2).diag() + features.T @ features / SIGMA**2
    location = torch.linalg.solve(precision, features.T @ (y - intercept) / SIGMA**2)
    return evidence, location, precision, features, intercept


def gap(precision, blocks):
    """KL from the best Gaussian with independent blocks to the Gaussian of that precision (in nats)."""
    inside = sum(precision[block][:, block].logdet() for block in blocks)
    return 0.5 * (inside - precision.logdet())


@pytest.fixture
def problem():
    model, x = Regression(), torch.randn(N, 3, 4)
    y = model(x).detach()
    return model, x, y


def function_guide(x, y=None):
    loc = pyro.param("loc", torch.zeros(1, 2, 2))
    scale = pyro.param("scale", torch.full((1, 2, 2), 0.3), constraint=constraints.positive)
    pyro.sample("attention.u", dist.Normal(loc, scale).to_event(3))


class ModuleGuide(PyroModule):
    def __init__(self, model):
        super().__init__()
        self.loc = PyroParam(torch.zeros(4))
        self.scale_tril = PyroParam(0.3 * torch.eye(4), constraint=constraints.lower_cholesky)

    def forward(self, x, y=None):
        flat = dist.MultivariateNormal(self.loc, scale_tril=self.scale_tril)
        to_site = dist.transforms.ReshapeTransform((4,), (1, 2, 2))
        return pyro.sample("attention.u", dist.TransformedDistribution(flat, to_site))


ROWS = ([0, 1], [2, 3])
SCALARS = ([0], [1], [2], [3])
GUIDES = {
    "for_model": (guides.for_model, ROWS),
    "AutoNormal": (autoguide.AutoNormal, SCALARS),
    "function": (lambda model: function_guide, SCALARS),
    "module": (ModuleGuide, ([0, 1, 2, 3],)),
}
ELBOS = {
    "Trace": lambda: Trace_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=1),
    "TraceMeanField": TraceMeanField_ELBO,
    "TraceGraph": TraceGraph_ELBO,
    "JitTrace": lambda: JitTrace_ELBO(ignore_jit_warnings=True),
    "probattn Trace": inference.Trace_ELBO,
    "probattn TraceMeanField": inference.TraceMeanField_ELBO,
}


def bound(model, guide, x, y, number=2000):
    """−ELBO in nats by many draws."""
    with draws(number):
        return inference.Trace_ELBO().loss(model, guide, x, y)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("elbo", ELBOS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_svi_reaches_the_best_bound_of_the_guides_family(problem, elbo, guide):
    model, x, y = problem
    make, blocks = GUIDES[guide]
    evidence, location, precision, *_ = conjugate(model, x, y)
    guide = make(model)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.985}), ELBOS[elbo]())
    for _ in range(200):
        svi.step(x, y)
    best = -evidence + gap(precision, blocks)
    assert best - 0.25 < bound(model, guide, x, y) < best + 0.35
    found = Predictive(guide, num_samples=300)(x)["attention.u"].reshape(300, 4)
    spread = torch.linalg.inv(precision).diagonal().sqrt()
    assert ((found.mean(0) - location).abs() < 0.5 * spread).all()


def test_renyi_bounds_are_tighter_than_the_elbo(problem):
    model, x, y = problem
    evidence = conjugate(model, x, y)[0]
    svi = SVI(model, function_guide, pyro.optim.Adam({"lr": 0.05}), RenyiELBO(alpha=0.0, num_particles=10))
    for _ in range(150):
        svi.step(x, y)
    with torch.no_grad():
        tight = -RenyiELBO(alpha=0.0, num_particles=2000).loss(model, function_guide, x, y)
    assert abs(tight - evidence) < 0.3
    assert -bound(model, function_guide, x, y) < tight + 0.05


def test_nine_estimates_of_one_elbo_agree(problem):
    model, x, y = problem
    evidence, _, precision, features, intercept = conjugate(model, x, y)
    guide = guides.for_model(model)
    q = guide.attention.u(model.attention.sites()["u"])
    loc, tril = q.mean.flatten().detach(), torch.block_diag(*guide.attention.u.scale_tril[0]).detach()
    residual = y - intercept - features @ loc
    expected = torch.distributions.Normal(0, SIGMA).log_prob(residual).sum()
    expected -= 0.5 * (features @ tril).square().sum() / SIGMA**2
    expected -= torch.distributions.kl_divergence(q, model.attention.sites()["u"]).item()
    kinds = (Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO, inference.Trace_ELBO, inference.TraceMeanField_ELBO)
    estimates = {kind: [-kind().loss(model, guide, x, y) for _ in range(300)] for kind in kinds}
    elbo = inference.TraceMeanField_ELBO()(model, guide)
    for number in ("example", 5):
        with draws(number):
            estimates[number] = [-elbo(x, y).item() for _ in range(300)]
    for values in map(torch.tensor, estimates.values()):
        assert (values.mean() - expected).abs() < 5 * values.std() / 300**0.5 + 1e-4
    assert expected < evidence


AUTOGUIDES = {
    "AutoNormal": autoguide.AutoNormal,
    "AutoDiagonalNormal": autoguide.AutoDiagonalNormal,
    "AutoMultivariateNormal": autoguide.AutoMultivariateNormal,
    "AutoLowRankMultivariateNormal": autoguide.AutoLowRankMultivariateNormal,
    "AutoIAFNormal": lambda model: autoguide.AutoIAFNormal(model, hidden_dim=[8]),
    "AutoDelta": autoguide.AutoDelta,
    "AutoLaplaceApproximation": autoguide.AutoLaplaceApproximation,
    "AutoGaussian": lambda model: autoguide.AutoGaussian(model, backend="dense"),
    "AutoStructured": autoguide.AutoStructured,
    "AutoNormalMessenger": autoguide.AutoNormalMessenger,
    "AutoHierarchicalNormalMessenger": autoguide.AutoHierarchicalNormalMessenger,
    "AutoRegressiveMessenger": autoguide.AutoRegressiveMessenger,
}


@pytest.mark.parametrize("auto", AUTOGUIDES)
def test_every_autoguide_of_pyro_finds_the_posterior_mean(problem, auto):
    model, x, y = problem
    _, location, precision, features, intercept = conjugate(model, x, y)
    guide = AUTOGUIDES[auto](model)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.99}), Trace_ELBO(num_particles=4))
    for _ in range(300):
        svi.step(x, y)
    if auto == "AutoLaplaceApproximation":
        guide = guide.laplace_approximation(x, y)
    found = predict(model, guide, [(x, y)], num_samples=300)
    deviation = (features @ torch.linalg.inv(precision) @ features.T).diagonal().sqrt()
    assert ((found.mean - intercept - features @ location).abs() < 0.6 * deviation + 0.05).all()


def test_an_autoguide_list_combines_guides_of_a_layers_site_and_of_a_users_own(problem):
    model, x, y = problem

    def own(x, y=None):
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(model.mean(x) + shift, SIGMA), obs=y)

    guide = autoguide.AutoGuideList(own)
    guide.append(autoguide.AutoNormal(poutine.block(own, expose=["shift"])))
    guide.append(autoguide.AutoMultivariateNormal(poutine.block(own, expose=["attention.u"])))
    svi = SVI(own, guide, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
    losses = [svi.step(x, y + 2.0) for _ in range(200)]
    assert sum(losses[-20:]) < sum(losses[:20]) - 100


def test_condition_and_do_reach_the_labels(problem):
    model, x, y = problem
    _, _, _, features, intercept = conjugate(model, x, y)
    u = torch.randn(1, 2, 2)
    expected = intercept + features @ u.flatten()
    conditioned = pyro.condition(model, data={"attention.u": u})
    trace = poutine.trace(conditioned).get_trace(x, y)
    assert_close(trace.nodes["y"]["fn"].mean, expected)
    joint = dist.Normal(expected, SIGMA).log_prob(y).sum() + dist.Normal(0, 1.5).log_prob(u).sum()
    assert_close(trace.log_prob_sum(), joint)
    done = pyro.do(model, data={"attention.u": u})
    assert_close(poutine.trace(done).get_trace(x).nodes["y"]["fn"].mean, expected)
    for program in (conditioned, done):
        assert_close(predict(program, guides.for_model(model), x, num_samples=4).mean, expected)
    assert_close(inference.Trace_ELBO().loss(conditioned, guides.for_model(model), x, y), -joint.item())


def test_uncondition_draws_the_labels(problem):
    model, x, y = problem
    trace = poutine.trace(poutine.uncondition(model)).get_trace(x, y)
    assert not trace.nodes["y"]["is_observed"]
    assert not torch.equal(trace.nodes["y"]["value"], y)


def test_scaled_and_blocked_programs_scale_the_loss(problem):
    model, x, y = problem
    guide = guides.for_model(model)
    torch.manual_seed(1)
    loss = inference.Trace_ELBO()(model, guide)(x, y)
    torch.manual_seed(1)
    scaled = inference.Trace_ELBO()(poutine.scale(model, 0.1), poutine.scale(guide, 0.1))(x, y)
    assert_close(scaled, 0.1 * loss)
    seen = poutine.trace(poutine.block(model, hide=["attention.u"])).get_trace(x, y).nodes
    assert "attention.u" not in seen
    assert "y" in seen


def test_lift_and_substitute_and_pyro_sample_give_lambda_a_prior(problem):
    model, x, y = problem
    prior = dist.Gamma(4.0, 2.0).expand([1, 2]).to_event(2)
    lifted = poutine.lift(model, prior={"attention.scale": prior})
    trace = poutine.trace(lifted).get_trace(x, y)
    scale, u = (trace.nodes[f"attention.{name}"] for name in ("scale", "u"))
    assert_close(u["fn"].log_prob(u["value"]), dist.Normal(0.0, scale["value"]).log_prob(u["value"]).sum())
    value = torch.tensor([[0.2, 3.0]])
    replaced = poutine.substitute(model, data={"attention.scale": value})
    trace = poutine.trace(replaced).get_trace(x, y)
    assert_close(trace.nodes["attention.u"]["fn"].stddev, value.expand(1, 2, 2))

    model.attention.scale = PyroSample(prior)
    guide = guides.for_model(model)
    assert set(guide.sites) == {"attention.scale", "attention.u"}
    trace = poutine.trace(model).get_trace(x, y)
    scale, u = (trace.nodes[f"attention.{name}"] for name in ("scale", "u"))
    assert_close(u["fn"].log_prob(u["value"]), dist.Normal(0.0, scale["value"]).log_prob(u["value"]).sum())
    inference.fit_guide(model, guide, (x, y), steps=300)
    found = inference.posterior_draws(model, guide, [(x, y)], num_samples=400)["attention.scale"]
    exact = torch.digamma(torch.tensor(4.0)) - math.log(2.0)  # F depends on u/λ alone: λ keeps its prior
    assert_close(found.log().mean(0), exact.expand(1, 2), atol=0.25, rtol=0)


def test_loc_scale_reparam_has_the_same_law(problem):
    _, x, y = problem
    model = Regression(prior=lambda scale: dist.Normal(torch.zeros_like(scale), scale).to_event(3))
    evidence, _, precision, *_ = conjugate(model, x, y)
    other = poutine.reparam(model, config={"attention.u": LocScaleReparam(0.0)})
    guide = autoguide.AutoMultivariateNormal(other)
    svi = SVI(other, guide, pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.99}), Trace_ELBO(num_particles=8))
    for _ in range(250):
        svi.step(x, y)
    assert abs(bound(other, guide, x, y) + evidence) < 0.25


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("number", [N, 400])
def test_predictive_gives_the_posterior_predictive(problem, parallel, number):
    """Also with as many draws as examples, which must not be paired."""
    model, x, y = problem
    guide = guides.for_model(model)
    found = Predictive(model, guide=guide, num_samples=number, parallel=parallel)(x)
    _, _, _, features, intercept = conjugate(model, x, y)
    u = found["attention.u"].reshape(number, 4)
    residual = found["y"] - intercept - u @ features.T
    assert found["y"].shape == (number, N)
    assert abs(residual.mean()) < 5 * SIGMA / (number * N) ** 0.5
    assert abs(residual.std() / SIGMA - 1) < 5 / (2 * number * N) ** 0.5


def test_models_are_rendered(problem):
    pytest.importorskip("graphviz")
    model, x, y = problem
    horseshoe = pyro.render_model(Regression(prior="horseshoe"), model_args=(x, y)).source
    assert "attention.prior.tau" in horseshoe
    assert '"attention.prior.zeta" -> "attention.u"' in horseshoe or "attention.prior.zeta -> attention.u" in horseshoe
    source = pyro.render_model(model, model_args=(x, y)).source
    assert '"attention.u" -> y' in source or "attention.u -> y" in source


@pytest.mark.parametrize("layer", [KEPSVGPAttention.partial(rank=2), SGPAttention.partial(inducing=3)])
def test_a_layer_has_one_log_joint_inside_and_outside_a_users_plate(layer):
    attention, head = layer(8, 2), nn.Linear(8, 3)
    x, y = torch.randn(5, 4, 8), torch.arange(5) % 3

    def outside(x, y):
        logits = head(attention(x).mean(-2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    def inside(x, y):
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=head(attention(x).mean(-2))), obs=y)

    def subsampled(x, y):
        with pyro.plate("data", 50, subsample=torch.arange(5)):
            pyro.sample("y", dist.Categorical(logits=head(attention(x).mean(-2))), obs=y)

    network = PyroModule[nn.Sequential](*copy.deepcopy((attention, Mean(), head)))
    guide = guides.for_model(attention)
    model = Classifier(network, num_data=50)
    trained = guides.for_model(model)
    trained.load_state_dict({f"network.0.{name}": value for name, value in guide.state_dict().items()})
    pairs = [(program, guide_of(guide, program)) for program in (outside, inside, subsampled)]
    losses = []
    for program, own in (*pairs, (model, trained)):
        torch.manual_seed(2)
        losses.append(Trace_ELBO().loss(program, own, x, y))
    assert math.isclose(losses[0], losses[1], rel_tol=1e-5)
    assert math.isclose(losses[2], losses[3], rel_tol=1e-5)
    trace = poutine.trace(inside).get_trace(x, y)
    assert trace.nodes["u"]["fn"].batch_shape == ()


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(-2)


def guide_of(guide, program):
    """The guide of a layer for a program that calls it: the same q, and local sites from their posteriors."""
    other = guides.for_model(program)
    other.load_state_dict(guide.state_dict())
    return other


def test_function_guides_train_in_svi_in_a_torch_loop_and_in_fit(problem):
    model, x, y = problem
    evidence, _, precision, *_ = conjugate(model, x, y)
    best = -evidence + gap(precision, SCALARS)

    svi = SVI(model, function_guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO(num_particles=8))
    for _ in range(200):
        svi.step(x, y)
    assert abs(bound(model, function_guide, x, y) - best) < 0.3

    pyro.clear_param_store()
    elbo = inference.TraceMeanField_ELBO(num_particles=8)(model, function_guide)
    with pytest.raises(RuntimeError, match=r"call elbo\(x, y\) once"):
        torch.optim.Adam(elbo.parameters())
    elbo(x, y)
    optimizer = torch.optim.Adam([p for p in elbo.parameters() if p.requires_grad], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        elbo(x, y).backward()
        optimizer.step()
    assert abs(bound(model, function_guide, x, y) - best) < 0.3
    assert pyro.param("scale").shape == (1, 2, 2)  # where Pyro keeps them

    pyro.clear_param_store()
    history = fit(model, function_guide, [(x, y)] * 20, epochs=15, lr=0.05, num_particles=8, progress=False)
    assert abs(bound(model, function_guide, x, y) - best) < 0.4
    assert history.steps[-1]["loss"] < history.steps[0]["loss"]
    spread = predict(model, function_guide, x, num_samples=300).variance - SIGMA**2
    assert (spread > 0).all()


def test_plain_functions_are_models(problem):
    module, x, y = problem

    def model(x, y=None):
        return module(x, y)

    model.num_data = N
    evidence, _, precision, *_ = conjugate(module, x, y)
    guide = guides.for_model(model)
    fit(model, guide, [(x, y)] * 20, epochs=10, lr=0.05, num_particles=8, progress=False)
    assert abs(bound(model, guide, x, y) + evidence - gap(precision, ROWS)) < 0.4
    _, location, _, features, intercept = conjugate(module, x, y)
    assert_close(predict(model, guide, x, num_samples=300).mean, intercept + features @ location, atol=0.25, rtol=0)
    check = posterior_predictive_check(model, guide, [(x, y)], statistics=["mean"], num_replicates=50)
    assert_close(check.observed["mean"].item(), y.double().mean().item())


def test_two_models_in_one_process_share_no_parameters(problem):
    first, x, y = problem
    second = Regression()
    for model in (first, second):
        model.requires_grad_(True)
    first_guide, second_guide = guides.for_model(first), guides.for_model(second)
    before = {name: p.clone() for name, p in second.named_parameters()}
    for _ in range(3):
        SVI(first, first_guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(x, y)
    assert all(torch.equal(p, before[name]) for name, p in second.named_parameters())
    with pytest.raises(RuntimeError, match="belongs to another module.*clear_param_store"):
        SVI(second, second_guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(x, y)
    elbo = inference.Trace_ELBO()(second, second_guide)  # modules do not need the store
    elbo(x, y).backward()
    pyro.clear_param_store()
    SVI(second, second_guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(x, y)
    assert not torch.equal(second.attention.out.weight, before["attention.out.weight"])

    def other_guide(x, y=None):
        loc = pyro.param("loc", torch.zeros(1, 2, 2))
        pyro.sample("attention.u", dist.Normal(loc, 1.0).to_event(3))

    pyro.clear_param_store()
    inference.Trace_ELBO()(first, function_guide)(x, y)
    with pytest.raises(RuntimeError, match="'loc' in Pyro's parameter store belongs to another program"):
        inference.Trace_ELBO()(second, other_guide)(x, y)


def test_hierarchical_priors_are_programs(problem):
    _, x, y = problem
    for prior, sites in (("horseshoe", {"prior.tau", "prior.zeta"}), (priors.ARD(), {"prior.precision"})):
        model = Regression(prior=prior)
        guide = guides.for_model(model)
        assert set(guide.sites) == {"attention.u", *(f"attention.{site}" for site in sites)}
        estimates = []
        for kind in (Trace_ELBO, TraceMeanField_ELBO, inference.Trace_ELBO, inference.TraceMeanField_ELBO):
            values = torch.tensor([kind().loss(model, guide, x, y) for _ in range(200)])
            estimates.append((values.mean(), values.std() / 200**0.5))
        for value, error in estimates[1:]:
            assert (value - estimates[0][0]).abs() < 5 * (error + estimates[0][1])
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), Trace_ELBO())
        losses = [svi.step(x, y) for _ in range(80)]
        assert sum(losses[-30:]) < sum(losses[:30])
        assert predict(model, guide, x).mean.shape == (N,)
        pyro.clear_param_store()


def test_a_positive_prior_has_positive_draws_from_every_family(problem):
    _, x, y = problem
    for family in families.FAMILIES:
        model = Regression(prior=lambda scale: dist.Gamma(2 * torch.ones_like(scale), 1 / scale).to_event(3))
        guide = guides.for_model(model, family)
        losses = [
            SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), elbo()).step(x, y)
            for elbo in (Trace_ELBO, TraceMeanField_ELBO, inference.Trace_ELBO, inference.TraceMeanField_ELBO)
        ]
        assert all(map(math.isfinite, losses))
        assert (poutine.trace(guide).get_trace(x).nodes["attention.u"]["value"] > 0).all()
        pyro.clear_param_store()


def test_fit_guide_finds_a_gamma_posterior():
    """y ~ Poisson(r), r ~ Gamma(2, 1): posterior Gamma(2 + Σy, 1 + n); sites of AutoGuides are mapped points."""
    y = torch.tensor([2.0, 3.0, 1.0, 4.0])

    def model(x, y=None):
        rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
        with pyro.plate("data", 4):
            pyro.sample("y", dist.Poisson(rate), obs=y)

    exact = dist.Gamma(2 + y.sum(), 5.0)
    for auto in (autoguide.AutoNormal, autoguide.AutoMultivariateNormal, autoguide.AutoStructured):
        guide = auto(model)
        inference.fit_guide(model, guide, (torch.zeros(4), y), steps=400)
        rate = torch.stack([guide(torch.zeros(4))["rate"].detach() for _ in range(2000)])
        assert abs(rate.mean() - exact.mean) < 0.12
        assert abs(rate.std() - exact.stddev) < 0.12


class Head(PyroModule):
    """Mean token and a linear head."""

    def __init__(self):
        super().__init__()
        self.attention = probattn.SoftmaxAttention(4, 2)
        self.requires_grad_(False)
        self.head = PyroModule[nn.Linear](4, 1, bias=False)
        self.head.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 4]).to_event(2))

    def forward(self, x):
        return self.head(self.attention(x).mean(-2))


class Known(nn.Module):
    def forward(self, outputs):
        return dist.Normal(outputs, SIGMA).to_event(1)


def test_a_bayesian_head_trains_and_predicts_draw_after_draw(caplog):
    network = Head()
    x = 3 * torch.randn(N, 3, 4)
    features = network.attention(x).mean(-2)
    y = features @ torch.randn(4, 1) + SIGMA * torch.randn(N, 1)
    model = Supervised(network, Known(), num_data=N)
    guide = guides.for_model(model, rest=autoguide.AutoMultivariateNormal)
    fit(model, guide, [(x, y)] * 20, epochs=25, lr=0.05, num_particles=8, progress=False)
    assert "one after another" in caplog.text
    found = predict(model, guide, [(x, y)], num_samples=400)
    precision = torch.eye(4) + features.T @ features / SIGMA**2
    mean = features @ torch.linalg.solve(precision, features.T @ y / SIGMA**2)
    variance = (features @ torch.linalg.inv(precision) @ features.T).diagonal().unsqueeze(-1) + SIGMA**2
    assert_close(found.mean, mean, atol=0.12, rtol=0)
    assert_close(found.variance, variance, atol=0.05, rtol=0.15)
    check = posterior_predictive_check(model, guide, [(x[:7], y[:7]), (x[7:], y[7:])], num_replicates=200)
    assert check.replicated_labels.shape == (200, N, 1)
    assert_close(check.replicated_labels.mean(0), mean, atol=0.25, rtol=0)
    drawn = inference.posterior_draws(model, guide, [(x, y)], num_samples=300)["network.head.weight"]
    exact = torch.linalg.solve(precision, features.T @ y / SIGMA**2).T
    assert_close(drawn.mean(0), exact, atol=0.15, rtol=0)


@pytest.mark.parametrize("kernel", [NUTS, lambda model: HMC(model, step_size=0.3, num_steps=6)], ids=["NUTS", "HMC"])
def test_chains_are_posteriors(problem, kernel):
    model, x, y = problem
    _, location, precision, features, intercept = conjugate(model, x, y)
    chain = MCMC(kernel(model), num_samples=400, warmup_steps=100, disable_progbar=True)
    chain.run(x, y)
    covariance = torch.linalg.inv(precision)
    found = predict(model, chain, [(x, y)], num_samples=400)
    deviation = (features @ covariance @ features.T).diagonal()
    assert_close(found.mean, intercept + features @ location, atol=0.1, rtol=0)
    assert_close(found.variance, deviation + SIGMA**2, atol=0.05, rtol=0.2)
    check = posterior_predictive_check(model, chain, [(x, y)], num_replicates=100)
    assert 0.02 < check.p_values["mean"].item() < 0.98
    pytest.importorskip("arviz")
    exported = inference.to_inference_data(model, chain, [(x, y)], num_samples=100)
    assert exported.posterior["attention.u"].shape == (1, 100, 1, 2, 2)


def test_stochastic_gradient_langevin_dynamics_samples_the_posterior(problem):
    model, x, y = problem
    _, location, precision, features, intercept = conjugate(model, x, y)
    samples = sgld(model, [(x, y)], num_samples=600, warmup_steps=300, step_size=0.02, thinning=3)
    found = predict(model, samples, [(x, y)], num_samples=600)
    assert_close(found.mean, intercept + features @ location, atol=0.15, rtol=0)
    deviation = (features @ torch.linalg.inv(precision) @ features.T).diagonal()
    assert_close(found.variance, deviation + SIGMA**2, atol=0.06, rtol=0.3)


@pytest.mark.filterwarnings("ignore:Found plate statements in guide but not model")
def test_a_users_guide_of_a_local_site_is_drawn_anew_for_each_draw():
    model = Classifier(PyroModule[nn.Sequential](SGPAttention(8, 2, inducing=3), Mean(), nn.Linear(8, 3)), num_data=5)
    x, y = torch.randn(5, 4, 8), torch.arange(5) % 3

    def guide(x, y=None, mask=None):
        pyro.sample("network.0.u", dist.Normal(torch.zeros(2, 4, 3), 1.0).to_event(3))
        with pyro.plate("examples", len(x), dim=-1):
            pyro.sample("network.0.g", dist.Normal(torch.zeros(2, 4, 4), 2.0).to_event(3))

    found = predict(model, guide, x, num_samples=50, keep_draws=True)
    assert len(found.draws[:, 0].unique(dim=0)) == 50
    assert (found.mutual_information > 0.01).all()
    ours = torch.tensor([inference.Trace_ELBO().loss(model, guide, x, y) for _ in range(300)])
    theirs = torch.tensor([Trace_ELBO().loss(model, guide, x, y) for _ in range(300)])
    assert (ours.mean() - theirs.mean()).abs() < 5 * (ours.var() / 300 + theirs.var() / 300).sqrt()


def test_a_subsampled_plate_gives_model_and_guide_the_same_examples():
    """Local sites come from a run of the model in the guide, which must draw the same indices (SGPA's g)."""
    attention, head = SGPAttention(8, 2, inducing=3), nn.Linear(8, 3)
    x, y = torch.randn(20, 4, 8), torch.arange(20) % 3

    def model(x, y, size=5):
        with pyro.plate("data", 20, subsample_size=size) as index:
            pyro.sample("y", dist.Categorical(logits=head(attention(x[index]).mean(-2))), obs=y[index])

    guide = guides.for_model(model)
    part, whole = (
        torch.tensor([Trace_ELBO().loss(model, guide, x, y, size=size) for _ in range(200)]) for size in (5, 20)
    )
    assert (part.mean() - whole.mean()).abs() < 5 * ((part.var() + whole.var()) / 200).sqrt()


@pytest.mark.filterwarnings("ignore:Found plate statements in guide but not model")
def test_a_users_guide_of_z_o_has_the_layers_weight_under_every_elbo():
    network = PyroModule[nn.Sequential](CGPAttention(8, 2, output="mean", noise=0.5), Mean(), nn.Linear(8, 3))
    model = Classifier(network, num_data=12)
    x, y = torch.randn(12, 4, 8), torch.arange(12) % 3

    def guide(x, y=None, mask=None):
        with pyro.plate("data", len(x)):
            pyro.sample("network.0.z_o", dist.Normal(torch.zeros(2, 4, 4), 0.9).to_event(3))

    kinds = (Trace_ELBO, TraceMeanField_ELBO, inference.Trace_ELBO, inference.TraceMeanField_ELBO)
    values = [torch.tensor([kind().loss(model, guide, x, y) for _ in range(100)]) for kind in kinds]
    for each in values[1:]:
        assert (each.mean() - values[0].mean()).abs() < 5 * ((each.var() + values[0].var()) / 100).sqrt() + 1e-3
    with pytest.raises(ValueError, match="z_o has a weight in its layer, which an AutoGuide cannot follow"):
        Trace_ELBO().loss(model, autoguide.AutoNormal(model), x, y)


def test_a_conditioned_local_site_needs_no_guide_in_svi():
    model = Classifier(PyroModule[nn.Sequential](SGPAttention(8, 2, inducing=3), Mean(), nn.Linear(8, 3)), num_data=5)
    x, y, g = torch.randn(5, 4, 8), torch.arange(5) % 3, torch.randn(5, 2, 4, 4)
    conditioned = pyro.condition(model, data={"network.0.g": g})
    guide = guides.for_model(conditioned)
    theirs = torch.tensor([Trace_ELBO().loss(conditioned, guide, x, y) for _ in range(200)])
    ours = torch.tensor([inference.Trace_ELBO().loss(conditioned, guide, x, y) for _ in range(200)])
    assert (theirs.mean() - ours.mean()).abs() < 5 * ((theirs.var() + ours.var()) / 200).sqrt()


class Plated(Regression):
    """A global site of a user's own in a plate at dimension −1 that is not the plate of the examples."""

    def forward(self, x, y=None):
        with pyro.plate("features", 4):
            weight = pyro.sample("weight", dist.Normal(0.0, 1.0))
        mean = (self.attention(x).mean(-2) * weight).sum(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(mean, SIGMA), obs=y)


@pytest.mark.parametrize("number", [5, N, 200])
def test_a_plate_of_a_users_own_is_not_the_plate_of_the_examples(problem, number):
    _, x, _ = problem
    model = Plated()
    guide = guides.for_model(model, rest=lambda program: autoguide.AutoNormal(program, init_scale=1.0))
    guides.materialise(guide, (x, torch.zeros(N)))
    parts = predict(model, guide, [x[:1], x[:1]], num_samples=number)
    assert_close(parts.mean[0], parts.mean[1])  # draw s is one function on all batches
    if number == 200:
        drawn = Predictive(model, guide=guide, num_samples=2000)(x)["y"]
        assert_close(predict(model, guide, x, num_samples=2000).variance, drawn.var(0), rtol=0.3, atol=0.02)


def test_wrapped_models_train_and_predict_from_the_prior(problem):
    model, x, y = problem
    scaled = poutine.scale(model, scale=0.5)
    torch.manual_seed(1)
    expected = predict(model, None, x, num_samples=7).mean
    torch.manual_seed(1)
    assert_close(predict(scaled, None, x, num_samples=7).mean, expected)
    fit(scaled, autoguide.AutoNormal(scaled), [(x, y)], epochs=1, progress=False)
    both = pyro.condition(model, data={})
    assert len(predict(both, guides.for_model(both), [x[:5], x[5:]]).mean) == N


def test_samples_of_another_shape_or_of_other_examples_are_refused(problem):
    model, x, _ = problem
    with pytest.raises(ValueError, match=r"must have shape \(R, 1, 2, 2\)"):
        predict(model, {"attention.u": torch.randn(2, 50, 1, 2, 2)}, x)


def wrong_guides():
    def missing(x, y=None):
        pass

    def misspelled(x, y=None):
        pyro.sample("attention.u", dist.Normal(torch.zeros(1, 2, 2), 1.0).to_event(3))
        pyro.sample("attention.v", dist.Normal(0.0, 1.0))

    def unshaped(x, y=None):
        pyro.sample("attention.u", dist.Normal(torch.zeros(4), 1.0).to_event(1))

    def plated(x, y=None):
        with pyro.plate("data", len(x)):
            pyro.sample("attention.u", dist.Normal(torch.zeros(1, 2, 2), 1.0).to_event(3))

    return {
        "draws no site attention.u": missing,
        "draws attention.v, which the model does not": misspelled,
        "event shape": unshaped,
        "no plate in the model": plated,
    }


@pytest.mark.parametrize("message", wrong_guides())
def test_a_guide_that_does_not_cover_the_model_is_refused_everywhere(problem, message):
    model, x, y = problem
    guide = wrong_guides()[message]
    with pytest.raises(ValueError, match=message):
        inference.Trace_ELBO()(model, guide)(x, y)
    with pytest.raises(ValueError, match=message):
        fit(model, guide, [(x, y)], epochs=1, progress=False)
    with pytest.raises(ValueError, match=message):
        predict(model, guide, x)


def test_a_guide_on_another_support_is_refused(problem):
    _, x, y = problem
    model = Regression(prior=lambda scale: dist.Gamma(2 * torch.ones_like(scale), 1 / scale).to_event(3))

    def guide(x, y=None):
        pyro.sample("attention.u", dist.Normal(torch.ones(1, 2, 2), 0.01).to_event(3))

    with pytest.raises(ValueError, match="has support .* in the model"):
        inference.Trace_ELBO()(model, guide)(x, y)


def test_a_prior_without_to_event_is_named():
    model = Regression(prior=lambda scale: dist.Normal(torch.zeros_like(scale), scale))
    with pytest.raises(ValueError, match=r"prior of site attention.u has batch shape \(1, 2, 2\).*\.to_event\(3\)"):
        guides.for_model(model)
