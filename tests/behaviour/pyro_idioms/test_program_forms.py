"""One program in every form that Pyro's tools take: local sites, functions, messengers, children,
reparametrised."""

from contextlib import nullcontext

import elbos
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from conjugate import gaussian, sgpa_parts
from float64 import randn64, zeros64
from idioms import N, Program, Regression, classifier, conjugate
from pyro.infer import SVI, Importance, Predictive, Trace_ELBO, autoguide
from pyro.infer.predictive import WeighedPredictive
from pyro.infer.reparam import LocScaleReparam
from pyro.nn import PyroModule
from torch import nn
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from probattn import KEPSVGPAttention, SGPAttention, guides, local_posteriors, name_layers
from probattn.draws import at_mean
from probattn.inference import ELBOLoss, TrainOptions, fit, predict


@pytest.fixture
def sgpa():
    """y ~ N(A u + g, σ²) with amortised q(g): model, guide and data, in float64."""
    layer = SGPAttention(4, 1, inducing=2, draws="joint")
    model = gaussian(layer, 3).eval()
    x = 3 * randn64(3, 2, 4)  # so that posterior and prior differ much
    with torch.no_grad():
        return model, guides.for_model(model).double(), x, model(x)


def means(model, guide, x):
    """The mean of the labels with all sites at the means of the guide and of their posteriors."""
    with at_mean(), torch.no_grad():
        guided = poutine.trace(guide).get_trace(x)
        return poutine.trace(poutine.replay(model, guided)).get_trace(x).nodes["y"]["fn"].mean


PROGRAMS = {
    "model": lambda model: (model, model),
    "both wrapped": lambda model: (local_posteriors(model),) * 2,
    "model wrapped": lambda model: (local_posteriors(model), model),
    "blocked": lambda model: (poutine.block(model, expose_types=["sample", "param"]), model),
}


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_predictive_draws_local_sites_from_their_posteriors(sgpa, name, parallel):
    model, guide, x, _ = sgpa
    program, guided = PROGRAMS[name](model)
    its_guide = guides.for_model(guided).double()
    its_guide.load_state_dict(guide.state_dict())
    expected = means(model, guide, x)
    number = 800 if parallel else 200
    sampled = Predictive(program, guide=its_guide, num_samples=number, parallel=parallel)(x)["y"]
    difference = sampled.mean(0).reshape(expected.shape) - expected
    standard_error = sampled.std(0).reshape(expected.shape) / number**0.5
    assert (difference.abs() < 5 * standard_error).all()
    assert expected.std() > 0.05  # under the prior it is constant


def log_weights(model, guide, x, y, nodes):
    """log p(y, u, g) − log q(u, g) at the values of a run, by multivariate normal distributions."""
    a, c = sgpa_parts(model.network, x)
    u, g = nodes["network.u"]["value"][0], nodes["network.g"]["value"][:, 0]  # (d, M), (n, N, d)
    q = guide.network.u
    with torch.no_grad():
        log_q_u = MultivariateNormal(q.loc[0], scale_tril=q.scale_tril[0]).log_prob(u).sum()
        _, value = model.network.split_heads(model.network.query_value(x), 2)
        covariance = c.unsqueeze(1)  # (n, 1, N, N)
        mean = (c @ value[:, 0]).mT  # (n, d, N)
        log_q_g = MultivariateNormal(mean, covariance).log_prob(g.mT).sum()
        log_p_g = MultivariateNormal(torch.zeros_like(mean), covariance).log_prob(g.mT).sum()
        log_p_u = dist.Normal(0.0, 1.0).log_prob(u).sum()
        log_p_y = model.likelihood(a @ u.T + g).log_prob(y).sum()
    return log_p_y + log_p_u + log_p_g - log_q_u - log_q_g


def test_importance_weights_hold_the_density_of_local_sites(sgpa):
    model, guide, x, y = sgpa
    run = Importance(model, guide, num_samples=20).run(x, y)
    for trace, log_weight in zip(run.exec_traces, run.log_weights, strict=True):
        expected = log_weights(model, guide, x, y, trace.nodes)
        assert log_weight.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("parallel", [False, True])
def test_weighed_predictive_has_the_weights_of_importance_sampling(sgpa, parallel):
    model, guide, x, y = sgpa

    def observed(x):
        return model(x, y)

    weighed = WeighedPredictive(model, guide=guide, num_samples=6, parallel=parallel)
    result = weighed(x, model_guide=observed)
    for row in range(6):
        nodes = {name: {"value": result.samples[name][row]} for name in ("network.u", "network.g")}
        nodes["network.u"]["value"] = nodes["network.u"]["value"].reshape(1, 4, 2)
        expected = log_weights(model, guide, x, y, nodes)
        assert result.log_weights[row].item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("blocked", [False, True])
def test_a_program_whose_local_sites_nobody_draws_is_refused(sgpa, blocked):
    model, _, x, y = sgpa
    guide = guides.for_model(local_posteriors(model)).double()
    around = poutine.block() if blocked else nullcontext()
    with around, pytest.raises(ValueError, match="local_posteriors"):
        Trace_ELBO().loss(model, guide, x, y)


def test_a_users_draw_of_a_local_site_counts_with_its_density(sgpa):
    """Under local_posteriors, too: a point far away has the loss of that point."""
    model, guide, x, y = sgpa
    g = torch.full((3, 1, 2, 4), 2.0, dtype=torch.float64)
    u = randn64(1, 4, 2)

    def own(x, y=None):
        pyro.sample("network.u", dist.Delta(u, event_dim=3))
        with pyro.plate("data", len(x)):
            pyro.sample("network.g", dist.Normal(g, 1e-9).to_event(3))

    a, c = sgpa_parts(model.network, x)
    log_p_g = MultivariateNormal(zeros64(3, 4, 2), c.unsqueeze(1)).log_prob(g[:, 0].mT).sum()
    log_p_y = model.likelihood(a @ u[0].T + g[:, 0]).log_prob(y).sum()
    expected = -(log_p_y + log_p_g + dist.Normal(0.0, 1.0).log_prob(u).sum())
    for program in (model, local_posteriors(model)):
        trace = poutine.trace(own).get_trace(x)
        joint = poutine.trace(poutine.replay(program, trace)).get_trace(x, y)
        assert -joint.log_prob_sum().item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("around", [False, True])
def test_a_condition_on_a_local_site_holds_inside_and_around_local_posteriors(sgpa, around):
    model, _, x, _ = sgpa
    data = {
        "network.g": randn64(3, 1, 2, 4),
        "network.u": torch.zeros(1, 4, 2).double(),
    }
    if around:
        program = pyro.condition(local_posteriors(model), data=data)
    else:
        program = local_posteriors(pyro.condition(model, data=data))
    trace = poutine.trace(program).get_trace(x)
    assert_close(trace.nodes["y"]["fn"].mean, data["network.g"][:, 0])
    trace.compute_log_prob()
    _, c = sgpa_parts(model.network, x)
    zero = zeros64(3, 4, 2)
    expected = MultivariateNormal(zero, c.unsqueeze(1)).log_prob(data["network.g"][:, 0].mT).sum()
    assert_close(trace.nodes["network.g"]["log_prob_sum"], expected)
    assert "network.g_kl" not in trace.nodes


class Unnamed(PyroModule):
    """A user's regression whose layer has no name."""

    def __init__(self):
        super().__init__()
        self.layers = PyroModule[nn.Sequential](KEPSVGPAttention(4, 1, rank=2, eta=0.0))

    def forward(self, x, y=None):
        mean = self.layers(x).mean((-2, -1))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(mean, 0.4), obs=y)


@pytest.mark.parametrize("handler", [pyro.condition, pyro.do])
def test_a_value_for_the_path_of_a_layer_without_a_name_is_refused_or_has_an_effect(handler):
    model, x, u = Unnamed(), torch.randn(5, 3, 4), torch.full((1, 2, 2), 3.0)
    with pytest.raises(ValueError, match="name_layers"):
        handler(model, data={"layers.0.u": u})(x)
    name_layers(model)
    trace = poutine.trace(handler(model, data={"layers.0.u": u})).get_trace(x)
    expected, _ = model.layers[0].compute(x, None, scale=model.layers[0].scale, u=u)
    assert_close(trace.nodes["y"]["fn"].mean, expected.mean((-2, -1)))


def function_guide(x, y=None, mask=None):
    loc = pyro.param("loc", torch.full((1, 2, 2), 0.3))
    pyro.sample("attention.u", dist.Normal(loc, 0.05).to_event(3))


def test_function_guides_predict_with_the_parameters_of_the_store(problem):
    model, x, y = problem
    svi = SVI(model, function_guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(20):
        svi.step(x, y)
    exact, loc = conjugate(model, x, y), pyro.param("loc").detach().flatten()
    prediction = predict(model, function_guide, x, num_samples=500)
    expected = exact.intercept + exact.features @ loc
    error = (0.05 * exact.features.norm(dim=1)) / 500**0.5
    assert ((prediction.mean - expected).abs() < 5 * error).all()


def test_fit_says_how_functions_are_trained(problem):
    model, x, y = problem
    for pair in ((model, function_guide), (lambda x, y=None: model(x, y), guides.for_model(model))):
        with pytest.raises(TypeError, match="SVI"):
            fit(*pair, [(x, y)], options=TrainOptions(epochs=1), progress=False)


def test_a_guide_messenger_trains_in_fit_and_has_pyros_loss(problem):
    model, x, y = problem
    guide = autoguide.AutoNormalMessenger(model, init_scale=0.3)
    guide(x, y)
    with torch.no_grad():
        elbos.assert_agree(
            elbos.losses(Trace_ELBO, model, guide, x, y, number=200),
            elbos.losses(elbos.Trace_ELBO, model, guide, x, y, number=200),
            elbos.losses(elbos.TraceMeanField_ELBO, model, guide, x, y, number=200),
        )
    options = TrainOptions(epochs=15, lr=0.1, num_particles=4)
    history = fit(model, guide, [(x, y)] * 10, options=options, progress=False)
    assert history.steps[-1]["loss"] < history.steps[0]["loss"]
    exact = conjugate(model, x, y)
    prediction = predict(model, guide, [(x, y)], num_samples=300)
    assert ((prediction.mean - exact.mean).abs() < 0.6 * exact.variance.sqrt() + 0.05).all()


class Holder(PyroModule):
    """A user's module around a model of the library."""

    num_data = N

    def __init__(self):
        super().__init__()
        self.inner = classifier(KEPSVGPAttention(8, 2, rank=2), num_data=N)

    def forward(self, x, y=None, mask=None):
        return self.inner(x, y, mask)


def test_a_supervised_model_is_a_child_of_a_users_module():
    holder, x, y = Holder(), torch.randn(N, 4, 8), torch.arange(N) % 3
    guide = guides.for_model(holder, "delta")
    options = TrainOptions(epochs=20, lr=0.05, log_every=1)
    history = fit(holder, guide, [(x, y)] * 3, [(x, y)], options=options, progress=False)
    assert history.steps[-1]["loss"] < history.steps[0]["loss"]
    prediction = predict(holder, guide, [(x, y)], num_samples=5)
    with poutine.condition(data=guide(x)), torch.no_grad():
        expected = holder.inner.network(x).softmax(-1)
    assert_close(prediction.probs, expected)
    assert len(prediction.labels) == N


def independent_normals(scale):
    return dist.Normal(torch.zeros_like(scale), scale).to_event(3)


@pytest.mark.parametrize(("prior", "centered"), [("normal", 0.4), (independent_normals, 0.0)])
def test_loc_scale_reparam_has_the_same_law(problem, prior, centered):
    _, x, y = problem
    model = Regression(prior=prior)
    other = poutine.reparam(model, config={"attention.u": LocScaleReparam(centered)})
    value = torch.randn(1, 2, 2)
    trace = poutine.trace(
        poutine.condition(other, data={"attention.u_decentered": value})
    ).get_trace(x, y)
    scale = model.attention.scale.unsqueeze(-2)
    u = scale ** (1 - centered) * value
    assert_close(trace.nodes["attention.u"]["value"], u)
    expected = dist.Normal(0.0, scale**centered).log_prob(value).sum()
    assert_close(trace.nodes["attention.u_decentered"]["fn"].log_prob(value), expected)
    guide = autoguide.AutoMultivariateNormal(other)
    assert SVI(other, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(x, y) > 0


def test_a_loaded_store_is_followed_by_every_tool_before_a_step(tmp_path):
    x, y = torch.randn(N, 4, 8), torch.arange(N) % 3

    def made():
        model = classifier(KEPSVGPAttention(8, 2, rank=2), num_data=N)
        return model, guides.for_model(model)

    first = made()
    svi = SVI(*first, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(30):
        svi.step(x, y)
    expected = predict(*first, x, num_samples=20, seed=0).probs
    pyro.get_param_store().save(tmp_path / "store")
    for use in (
        lambda model, guide: predict(model, guide, x, num_samples=20, seed=0).probs,
        lambda model, guide: Predictive(model, guide=guide, num_samples=2)(x),
        lambda model, guide: SVI(model, guide, pyro.optim.Adam({}), Trace_ELBO()).evaluate_loss(
            x, y
        ),
        lambda model, guide: ELBOLoss(model, guide)(x, y),
    ):
        pyro.clear_param_store()
        pyro.get_param_store().load(tmp_path / "store")
        pair = made()
        use(*pair)
        assert_close(predict(*pair, x, num_samples=20, seed=0).probs, expected)
    before = pair[0].network[0].log_scale.detach().clone()
    SVI(*pair, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()).step(x, y)
    assert not torch.equal(pair[0].network[0].log_scale, before)


def test_programs_of_functions_are_programs_of_modules(problem):
    """A module of a function, and one under handlers, give the same loss as the function."""
    model, x, y = problem
    guide = guides.for_model(model, "delta")
    program = Program(lambda x, y=None: model(x, y))
    expected = Trace_ELBO().loss(model, guide, x, y)
    assert ELBOLoss(program, guide, Trace_ELBO())(x, y).item() == pytest.approx(expected, rel=1e-5)
