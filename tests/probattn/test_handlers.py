"""Draws, local sites, KL weight and means: what each handler does to a site, and what that leaves unchanged."""

import math
from contextlib import ExitStack

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule
from torch import nn
from torch.testing import assert_close

from probattn import SGPAttention, draws, guides, inference, local_sites
from probattn.handlers import (
    alpha,
    are_from_input,
    at_mean,
    draws_in_batch,
    kl_weight,
    local_posteriors,
    num_folded,
    num_samples,
    stochastic_input,
)
from probattn.models import Classifier

X, Y = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 0.0, 3.0])
N = 30


def model(x, y=None):
    """Linear regression with a slope (event of size 2, summed) and one factor an example."""
    slope = pyro.sample("slope", dist.MultivariateNormal(torch.zeros(2), scale_tril=torch.eye(2)))
    with local_sites(batch=len(x), num_data=N):
        unit = dist.Unit(-x.square())
        pyro.sample("factor", unit, obs=unit.sample(), infer={"is_auxiliary": True, "local": True})
        return pyro.sample("y", dist.Normal(slope.sum(-1) * x, 1.0), obs=y, infer={"local": True})


def guide(x, y=None):
    pyro.sample("slope", dist.MultivariateNormal(torch.tensor([0.3, -0.2]), scale_tril=0.5 * torch.eye(2)))


def posterior():
    return dist.MultivariateNormal(torch.tensor([0.3, -0.2]), scale_tril=0.5 * torch.eye(2))


KL = torch.distributions.kl_divergence(posterior(), dist.MultivariateNormal(torch.zeros(2), scale_tril=torch.eye(2)))


def expected_loss():
    """Closed form: the slope's sum is N(0.1, 0.5)."""
    log_likelihood = dist.Normal(0.1 * X, 1.0).log_prob(Y) - 0.5 * 0.5 * X.square()
    return KL - N / 3 * (log_likelihood - X.square()).sum()


def traces(*handlers):
    with handlers[0] if handlers else poutine.block(hide=[]):
        guide_trace = poutine.trace(guide).get_trace(X, Y)
        model_trace = poutine.trace(poutine.replay(model, guide_trace)).get_trace(X, Y)
    return model_trace, guide_trace


def test_draw_per_example_gives_each_example_its_own():
    torch.manual_seed(0)
    model_trace, guide_trace = traces(draws("example"))
    slope = guide_trace.nodes["slope"]["value"]
    assert slope.shape == (3, 2)
    assert len(set(slope[:, 0].tolist())) == 3
    assert_close(model_trace.nodes["y"]["fn"].mean, slope.sum(-1) * X)
    model_trace.compute_log_prob()
    assert_close(model_trace.nodes["y"]["log_prob_sum"], N / 3 * dist.Normal(slope.sum(-1) * X, 1.0).log_prob(Y).sum())
    prior = dist.MultivariateNormal(torch.zeros(2), scale_tril=torch.eye(2))
    assert_close(model_trace.nodes["slope"]["log_prob_sum"], prior.log_prob(slope).mean())
    assert_close(model_trace.nodes["factor"]["log_prob_sum"], -N / 3 * X.square().sum())


def test_draws_for_prediction_pair_by_number_even_when_it_equals_the_batch():
    torch.manual_seed(0)
    for number in (2, 3):
        model_trace, guide_trace = traces(draws(number))
        slope = guide_trace.nodes["slope"]["value"]
        assert slope.shape == (number, 1, 2)
        assert_close(model_trace.nodes["y"]["fn"].mean, slope.sum(-1) * X)
        model_trace.compute_log_prob()
        log_likelihood = dist.Normal(slope.sum(-1) * X, 1.0).log_prob(Y).sum(-1).mean()
        assert_close(model_trace.nodes["y"]["log_prob_sum"], N / 3 * log_likelihood)
        assert_close(model_trace.nodes["factor"]["log_prob_sum"], -N / 3 * X.square().sum())


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("how", ["shared", "example", "number", "both"])
def test_every_way_to_draw_has_the_same_expected_loss(elbo, how):
    handlers = {"shared": [], "example": ["example"], "number": [4], "both": ["example", 4]}[how]
    torch.manual_seed(0)
    losses = []
    for _ in range(600):
        with torch.no_grad():
            opened = [draws(number) for number in handlers]
            for handler in opened:
                handler.__enter__()
            losses.append(elbo().differentiable_loss(model, guide, X, Y))
            for handler in reversed(opened):
                handler.__exit__(None, None, None)
    losses = torch.stack(losses)
    assert (losses.mean() - expected_loss()).abs() < 4 * losses.std() / 600**0.5


def test_draws_nest_into_particles_per_example():
    with draws("example"), draws(4):
        trace = poutine.trace(guide).get_trace(X, Y)
    value = trace.nodes["slope"]["value"]
    assert value.shape == (4, 3, 2)
    assert len(value[..., 0].unique()) == 12
    assert trace.nodes["slope"]["scale"] == pytest.approx(1 / 12)


def test_a_smaller_last_batch_needs_nothing():
    for batch in (3, 2, 1):
        with draws("example"):
            trace = poutine.trace(guide).get_trace(X[:batch])
        assert trace.nodes["slope"]["value"].shape == (batch, 2)


def test_kl_of_many_draws_is_computed_once(monkeypatch):
    """The KL of the expanded distributions is that of one draw, expanded."""
    model_trace, guide_trace = traces(draws("example"))
    kl = torch.distributions.kl_divergence(guide_trace.nodes["slope"]["fn"], model_trace.nodes["slope"]["fn"])
    assert_close(kl, KL.expand(3))
    assert kl.stride() == (0,)


def test_the_batch_may_be_a_keyword():
    with draws("example"):
        assert poutine.trace(guide).get_trace(x=X).nodes["slope"]["value"].shape == (3, 2)


def test_example_without_a_batch_is_an_error():
    with draws("example"), pytest.raises(ValueError, match="found no batch"):
        pyro.sample("slope", dist.Normal(0.0, 1.0))


def test_who_asks_for_the_draws_is_told_the_innermost():
    assert (num_samples(), num_folded(), are_from_input()) == (None, None, False)
    with draws(3), draws("example"):
        assert num_samples() == 3
        with draws(2), draws_in_batch(2), stochastic_input():
            assert (num_samples(), num_folded(), are_from_input()) == (2, 2, True)
        assert (num_samples(), num_folded(), are_from_input()) == (3, None, False)


def test_draws_have_appeared_behind_what_folds_them():
    with stochastic_input() as outer, stochastic_input() as inner:
        with draws_in_batch(2):
            assert (outer.drawn, inner.drawn) == (False, False)
        assert (outer.drawn, inner.drawn) == (True, True)
    with draws_in_batch(2), stochastic_input() as inside:
        pass
    assert not inside.drawn


@pytest.mark.parametrize("number", [0, -1, "batch", True, False])
def test_bad_numbers_are_named(number):
    with pytest.raises(ValueError, match="positive number"):
        draws(number)


def test_local_sites_stand_for_the_data_set():
    model_trace, _ = traces()
    model_trace.compute_log_prob()
    slope = model_trace.nodes["slope"]["value"]
    log_likelihood = dist.Normal(slope.sum() * X, 1.0).log_prob(Y)
    assert_close(model_trace.nodes["y"]["log_prob_sum"], N / 3 * log_likelihood.sum())
    assert model_trace.nodes["slope"]["scale"] == 1
    (frame,) = model_trace.nodes["y"]["cond_indep_stack"]
    assert (frame.name, frame.dim, frame.size, frame.full_size) == ("data", -1, 3, N)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_kl_weight_scales_the_global_sites_only(elbo):
    def loss(weight):
        torch.manual_seed(0)
        with kl_weight(weight):
            return elbo().differentiable_loss(model, guide, X, Y)

    assert_close(loss(0.25), loss(0.0) + 0.25 * (loss(1.0) - loss(0.0)))
    with kl_weight(0.0):
        model_trace, _ = traces()
    model_trace.compute_log_prob()
    assert model_trace.nodes["slope"]["log_prob_sum"] == 0
    assert model_trace.nodes["y"]["log_prob_sum"] != 0


def test_at_mean_takes_means_and_leaves_local_sites_alone():
    torch.manual_seed(0)
    with at_mean():
        assert_close(poutine.trace(guide).get_trace(X).nodes["slope"]["value"], posterior().mean)
        trace = poutine.trace(model).get_trace(X)
    assert_close(trace.nodes["slope"]["value"], torch.zeros(2))
    assert trace.nodes["y"]["value"].abs().min() > 0
    with at_mean(), draws(4):
        assert_close(poutine.trace(guide).get_trace(X).nodes["slope"]["value"], posterior().mean.expand(4, 1, 2))
    with draws(4), at_mean():
        assert_close(
            poutine.trace(guide).get_trace(X).nodes["slope"]["value"].expand(4, 1, 2), posterior().mean.expand(4, 1, 2)
        )


def test_gradient_noise_falls_with_a_draw_per_example():
    loc = torch.tensor([0.3, -0.2], requires_grad=True)

    def learned(x, y=None):
        pyro.sample("slope", dist.MultivariateNormal(loc, scale_tril=0.5 * torch.eye(2)))

    def gradients(*handlers):
        torch.manual_seed(0)
        values = []
        for _ in range(500):
            with handlers[0] if handlers else poutine.block(hide=[]):
                loss = TraceMeanField_ELBO().differentiable_loss(model, learned, X, Y)
            values.append(torch.autograd.grad(loss, loc)[0])
        return torch.stack(values)

    shared, example = gradients(), gradients(draws("example"))
    error = (shared.var(0) / 500 + example.var(0) / 500).sqrt()
    assert ((shared.mean(0) - example.mean(0)).abs() < 4 * error).all()
    assert (example.var(0) < 0.7 * shared.var(0)).all()


def plated(dim):
    def run(x):
        with pyro.plate("data", 3, dim=dim):
            pyro.sample("slope", dist.Normal(0.0, 1.0))

    return run


def test_draws_refuse_a_site_whose_plate_has_their_dimension():
    with draws(4), pytest.raises(ValueError, match="slope is in a plate of dimension -2.*vectorize=False"):
        poutine.trace(plated(-2)).get_trace(X)


def test_a_site_in_a_users_plate_is_one_of_each_example():
    with draws("example"):
        site = poutine.trace(plated(-1)).get_trace(X).nodes["slope"]
    assert (site["fn"].batch_shape, site["scale"]) == ((3,), 1.0)
    with draws(4):
        site = poutine.trace(plated(-1)).get_trace(X).nodes["slope"]
    assert (site["fn"].batch_shape, site["scale"]) == ((4, 3), 0.25)
    assert len(site["value"].unique()) == 12


A, C = 0.7, -0.4
LOC, SCALE = 0.6, 0.5


class Chain(nn.Module):
    """A weight that all share, and two values of each example, the second's posterior a function of the first's draw.

    w ~ N(0, 1); z1 ~ N(0, 1), posterior N(A x + w, 1/4); z2 ~ N(z1, 1), posterior N(C z1 + x, 0.09); y ~ N(z2, 1).
    """

    def __init__(self, *, factor=False):
        super().__init__()
        self.unused, self.factor = nn.Parameter(torch.zeros(())), factor

    def forward(self, x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with local_sites(batch=len(x), num_data=N):
            zero = torch.zeros(torch.broadcast_shapes(w.shape, x.shape))
            first = {"local": True, "posterior": dist.Normal(A * x + w, 0.5)}
            z1 = pyro.sample("z1", dist.Normal(zero, 1.0), infer=first)
            second = {"local": True, "posterior": dist.Normal(C * z1 + x, 0.3)}
            z2 = pyro.sample("z2", dist.Normal(z1, 1.0), infer=second)
            if self.factor:
                for name, extra in (("r", {"regulariser": True}), ("penalty", {})):
                    unit = dist.Unit(-x.square().expand(zero.shape))
                    pyro.sample(name, unit, obs=unit.sample(), infer={"is_auxiliary": True, "local": True, **extra})
            return pyro.sample("y", dist.Normal(z2, 1.0), obs=y, infer={"local": True})


class Global(nn.Module):
    """The guide of one pass: it knows the shared site only."""

    def forward(self, x, y=None):
        return pyro.sample("w", dist.Normal(LOC, SCALE))


class TwoPass(nn.Module):
    """The guide of two passes: it runs the network below each local site itself, and draws it by name."""

    def forward(self, x, y=None):
        w = pyro.sample("w", dist.Normal(LOC, SCALE))
        with local_sites(batch=len(x), num_data=N):
            z1 = pyro.sample("z1", dist.Normal(A * x + w, 0.5), infer={"local": True})
            pyro.sample("z2", dist.Normal(C * z1 + x, 0.3), infer={"local": True})


def chain_loss(weight=1.0):
    """Minus the ELBO of the whole data set in closed form, from the moments of w, z1 and z2 under the guide."""
    kl_w = 0.5 * (SCALE**2 + LOC**2 - 1 - math.log(SCALE**2))
    mean1, var1 = A * X + LOC, 0.25 + SCALE**2
    kl_1 = 0.5 * (0.25 + mean1.square() + SCALE**2 - 1 - math.log(0.25))
    kl_2 = 0.5 * (0.09 + ((C - 1) * mean1 + X).square() + (C - 1) ** 2 * var1 - 1 - math.log(0.09))
    squares = (Y - C * mean1 - X).square() + 0.09 + C**2 * var1
    return weight * kl_w + N / 3 * (kl_1 + kl_2 + 0.5 * math.log(2 * math.pi) + 0.5 * squares).sum()


LIBRARY = {Trace_ELBO: inference.Trace_ELBO, TraceMeanField_ELBO: inference.TraceMeanField_ELBO}
WAYS = {"shared": [], "example": ["example"], "number": [4], "both": ["example", 4]}
EACH_WAY = pytest.mark.parametrize("how", WAYS)
EACH_ELBO = pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])


def open_draws(stack, how):
    for number in WAYS[how]:
        stack.enter_context(draws(number))


@EACH_ELBO
@EACH_WAY
def test_one_pass_and_two_passes_have_the_expected_loss_in_closed_form(elbo, how):
    """The library's ELBO draws local sites in the model's pass; Pyro's own with a guide that knows them agrees."""
    for objective, guide in ((LIBRARY[elbo](), Global()), (elbo(), TwoPass()), (LIBRARY[elbo](), TwoPass())):
        torch.manual_seed(0)
        losses, program = [], Chain()
        with torch.no_grad():
            for _ in range(120):
                with ExitStack() as stack:
                    open_draws(stack, how)
                    losses.append(objective.differentiable_loss(program, guide, X, Y))
        losses = torch.stack(losses)
        assert (losses.mean() - chain_loss()).abs() < 4 * losses.std() / 120**0.5


@EACH_ELBO
@EACH_WAY
def test_one_pass_equals_two_passes_at_the_same_draws(elbo, how):
    torch.manual_seed(0)
    objective, program = LIBRARY[elbo](), Chain()
    with ExitStack() as stack:
        open_draws(stack, how)
        loss = objective.differentiable_loss(program, Global(), X, Y)
        model_trace, guide_trace = objective.traces
        replayed = poutine.replay(TwoPass(), trace=guide_trace)
        assert_close(elbo().differentiable_loss(program, replayed, X, Y), loss)
    assert [name for name in guide_trace.nodes if name in ("w", "z1", "z2")] == ["w", "z1", "z2"]
    for name in ("z1", "z2"):
        assert torch.equal(model_trace.nodes[name]["value"], guide_trace.nodes[name]["value"])


@EACH_WAY
def test_local_sites_are_scored_by_prior_and_posterior_with_the_scale_of_the_data_set(how):
    objective = inference.Trace_ELBO()
    with ExitStack() as stack:
        open_draws(stack, how)
        objective.differentiable_loss(Chain(), Global(), X, Y)
    model_trace, guide_trace = objective.traces
    number = {"shared": 1, "example": 1, "number": 4, "both": 4}[how]
    shape = {"shared": (3,), "example": (3,), "number": (4, 3), "both": (4, 3)}[how]
    w, z1, z2 = (model_trace.nodes[name]["value"] for name in ("w", "z1", "z2"))
    assert z1.shape == z2.shape == shape
    assert len(z1.unique()) == z1.numel()
    expected = {
        "z1": (dist.Normal(0.0, 1.0).log_prob(z1), dist.Normal(A * X + w, 0.5).log_prob(z1)),
        "z2": (dist.Normal(z1, 1.0).log_prob(z2), dist.Normal(C * z1 + X, 0.3).log_prob(z2)),
    }
    for name, log_probs in expected.items():
        for trace, log_prob in zip((model_trace, guide_trace), log_probs, strict=True):
            node = trace.nodes[name]
            assert node["scale"] == pytest.approx(N / 3 / number)
            assert_close(node["log_prob_sum"], N / 3 / number * log_prob.sum())
    assert "posterior" not in guide_trace.nodes["z1"]["infer"]


@EACH_ELBO
def test_the_guides_own_draw_wins(elbo):
    """A guide that draws one of the local sites: the other comes from the posterior that the model carries for it."""

    class Own(Global):
        def forward(self, x, y=None):
            super().forward(x, y)
            with local_sites(batch=len(x), num_data=N):
                pyro.sample("z1", dist.Normal(50.0 * torch.ones(len(x)), 1e-3), infer={"local": True})

    objective = LIBRARY[elbo]()
    loss = objective.differentiable_loss(Chain(), Own(), X, Y)
    model_trace, guide_trace = objective.traces
    assert_close(model_trace.nodes["z1"]["value"], torch.full((3,), 50.0), rtol=0, atol=0.01)
    assert guide_trace.nodes["z1"]["fn"].stddev[0] == pytest.approx(1e-3)
    assert_close(model_trace.nodes["z2"]["value"], C * 50 + X, rtol=0, atol=1.5)
    terms = objective.terms()
    assert set(terms) == {"nll", "kl/w", "kl/z1", "kl/z2"}
    assert sum(terms.values()) == pytest.approx(loss.item(), rel=1e-5)


def test_without_a_guide_local_sites_come_from_their_priors_and_with_it_from_their_posteriors():
    torch.manual_seed(0)
    data = {"w": torch.tensor(5.0)}
    with draws(4000):
        prior = poutine.trace(poutine.condition(Chain(), data=data)).get_trace(X).nodes
        with local_posteriors():
            posterior = poutine.trace(poutine.condition(Chain(), data=data)).get_trace(X).nodes
    assert prior["z1"]["value"].shape == posterior["z1"]["value"].shape == (4000, 3)
    for nodes, mean, std in ((prior, torch.zeros(3), 1.0), (posterior, A * X + 5, 0.5)):
        assert_close(nodes["z1"]["value"].mean(0), mean, rtol=0, atol=5 * std / 4000**0.5)
        assert_close(nodes["z1"]["value"].std(0), torch.full((3,), std), rtol=0.06, atol=0)
        assert_close(nodes["z1"]["fn"].mean, torch.zeros(4000, 3))
        assert "prior" not in nodes["z1"]["infer"]
    assert_close((posterior["z2"]["value"] - C * posterior["z1"]["value"]).mean(0), X, rtol=0, atol=0.03)


def test_observed_and_conditioned_local_sites_stay_what_they_are():
    z1 = torch.tensor([1.0, 2.0, 3.0])
    guide_trace = poutine.trace(Global()).get_trace(X)
    with local_posteriors(guide_trace):
        replayed = poutine.replay(poutine.condition(Chain(), data={"z1": z1}), trace=guide_trace)
        trace = poutine.trace(replayed).get_trace(X, Y)
    assert torch.equal(trace.nodes["z1"]["value"], z1)
    assert trace.nodes["z1"]["is_observed"]
    assert "z1" not in guide_trace.nodes
    assert {"w", "z2"} < set(guide_trace.nodes)
    assert "y" not in guide_trace.nodes


@pytest.mark.parametrize("number", [1, 3, 5])
def test_draws_below_every_global_site_are_a_new_first_dimension_at_a_local_site(number):
    """S different draws, also where S is the batch, and nothing global lies below; they average in the density."""

    class Alone(Chain):
        def forward(self, x, y=None):
            with local_sites(batch=len(x), num_data=N):
                posterior = dist.Normal(x.unsqueeze(-1).expand(-1, 2), 0.5).to_event(1)
                prior = dist.Normal(torch.zeros(len(x), 2), 1.0).to_event(1)
                z = pyro.sample("z", prior, infer={"local": True, "posterior": posterior})
                return pyro.sample("y", dist.Normal(z.sum(-1), 1.0), obs=y, infer={"local": True})

    class Nothing(nn.Module):
        def forward(self, x, y=None):
            pass

    for elbo in (inference.Trace_ELBO, inference.TraceMeanField_ELBO):
        objective = elbo()
        with draws(number):
            loss = objective.differentiable_loss(Alone(), Nothing(), X, Y)
        model_trace, guide_trace = objective.traces
        z = model_trace.nodes["z"]["value"]
        assert z.shape == (number, 3, 2)
        assert len(z.unique()) == z.numel()
        prior, posterior = dist.Normal(0.0, 1.0), dist.Normal(X.unsqueeze(-1), 0.5)
        kl = (posterior.log_prob(z) - prior.log_prob(z)).sum(-1).mean(0)
        if elbo is inference.TraceMeanField_ELBO:
            kl = torch.distributions.kl_divergence(posterior, prior).sum(-1) * 2
        log_likelihood = dist.Normal(z.sum(-1), 1.0).log_prob(Y).mean(0)
        assert_close(loss, N / 3 * (kl - log_likelihood).sum())
    with draws("example"), draws(number):
        objective.differentiable_loss(Alone(), Nothing(), X, Y)
    z = objective.traces[0].nodes["z"]["value"]
    assert z.shape == (number, 3, 2)
    assert len(z.unique()) == z.numel()


@EACH_ELBO
def test_kl_weight_leaves_local_sites_alone(elbo):
    """Everything at its mean: the loss moves by the KL of w alone, or by its two log densities there."""
    losses, terms = [], []
    for weight in (1.0, 0.25):
        objective = LIBRARY[elbo]()
        with at_mean(), kl_weight(weight):
            losses.append(objective.differentiable_loss(Chain(), Global(), X, Y))
        terms.append(objective.terms())
    assert losses[0] - losses[1] == pytest.approx(0.75 * terms[0]["kl/w"], abs=1e-3)
    assert terms[1]["kl/w"] == pytest.approx(0.25 * terms[0]["kl/w"], rel=1e-5)
    for name in ("nll", "kl/z1", "kl/z2"):
        assert terms[1][name] == terms[0][name]
    if elbo is TraceMeanField_ELBO:
        assert terms[0]["kl/w"] == pytest.approx(0.5 * (SCALE**2 + LOC**2 - 1 - math.log(SCALE**2)), rel=1e-5)


@EACH_ELBO
def test_kl_weight_has_its_own_weight_for_local_sites(elbo):
    """In the guide's trace as in the model's; what is observed and what all share keep their scale."""
    terms = []
    for local in (1.0, 0.25):
        objective = LIBRARY[elbo]()
        torch.manual_seed(0)
        with kl_weight(1.0, local=local):
            loss = objective.differentiable_loss(Chain(factor=True), Global(), X, Y)
        terms.append(objective.terms())
        assert sum(terms[-1].values()) == pytest.approx(loss.item(), rel=1e-5)
    for name, value in terms[0].items():
        assert terms[1][name] == pytest.approx((0.25 if name in ("kl/z1", "kl/z2") else 1.0) * value, rel=1e-5), name


@pytest.mark.parametrize("number", [None, 4])
def test_at_mean_puts_local_sites_at_the_mean_of_their_posteriors_given_those_below(number):
    for outer_draws in (False, True):
        objective = inference.Trace_ELBO()
        with ExitStack() as stack:
            handlers = [at_mean()] if number is None else [at_mean(), draws(number)]
            for handler in reversed(handlers) if outer_draws else handlers:
                stack.enter_context(handler)
            objective.differentiable_loss(Chain(), Global(), X, Y)
        nodes = objective.traces[0].nodes
        mean = A * X + LOC
        for name, expected in (("z1", mean), ("z2", C * mean + X)):
            assert_close(nodes[name]["value"], expected.expand(nodes[name]["value"].shape))
    with at_mean():
        nodes = poutine.trace(Chain()).get_trace(X).nodes
    assert torch.equal(nodes["z1"]["value"], torch.zeros(3))


@pytest.mark.parametrize("weight", [0.0, 0.7, 1.0])
def test_alpha_scales_the_regularisers_only(weight):
    terms = []
    for scale in (1.0, weight):
        objective = inference.TraceMeanField_ELBO()
        with at_mean(), alpha(scale):
            objective.differentiable_loss(Chain(factor=True), Global(), X, Y)
        terms.append(objective.terms())
    assert terms[0]["penalty/r"] == pytest.approx(N / 3 * X.square().sum().item())
    for name, value in terms[0].items():
        assert terms[1][name] == pytest.approx((weight if name == "penalty/r" else 1.0) * value)


@EACH_ELBO
@EACH_WAY
def test_batches_are_an_unbiased_estimate_of_the_data_set_with_local_sites(elbo, how):
    """Everything at its mean: the losses of disjoint batches average to that of all examples at once."""
    torch.manual_seed(1)
    x, y = torch.randn(N), torch.randn(N)

    def loss(index):
        with ExitStack() as stack:
            stack.enter_context(at_mean())
            open_draws(stack, how)
            return LIBRARY[elbo]().differentiable_loss(Chain(factor=True), Global(), x[index], y[index])

    batches = torch.randperm(N).split(5)
    whole = loss(torch.arange(N))
    assert_close(sum(loss(batch) for batch in batches) / len(batches), whole)
    assert (loss(batches[0]) - whole).abs() > 1e-2


def test_gradients_reach_posteriors_through_the_draws():
    """The reparametrised gradient of the one-pass loss in A, in closed form: d loss / d A."""
    slope = torch.tensor(A, requires_grad=True)

    class Learned(Chain):
        def forward(self, x, y=None):
            with local_sites(batch=len(x), num_data=N):
                infer = {"local": True, "posterior": dist.Normal(slope * x, 0.5)}
                z = pyro.sample("z", dist.Normal(torch.zeros(len(x)), 1.0), infer=infer)
                return pyro.sample("y", dist.Normal(z, 1.0), obs=y, infer={"local": True})

    class Nothing(nn.Module):
        def forward(self, x, y=None):
            pass

    torch.manual_seed(0)
    expected = N / 3 * (slope * X.square() - X * (Y - slope * X)).sum()
    for elbo in (inference.Trace_ELBO, inference.TraceMeanField_ELBO):
        with draws(20_000):
            loss = elbo().differentiable_loss(Learned(), Nothing(), X, Y)
        (gradient,) = torch.autograd.grad(loss, slope)
        assert (gradient - expected).abs() < 1.0


@pytest.mark.parametrize("elbo", [pyro.infer.Trace_ELBO, pyro.infer.TraceMeanField_ELBO])
def test_pyros_own_elbos_refuse_to_draw_a_local_site_from_its_prior(elbo):
    torch.manual_seed(0)
    network = PyroModule[torch.nn.Sequential](
        SGPAttention(8, 2, inducing=2), torch.nn.Flatten(), torch.nn.Linear(24, 2)
    )
    model = Classifier(network, num_data=4)
    x, y = torch.randn(4, 3, 8), torch.zeros(4, dtype=torch.long)
    guide = AutoNormal(guides.global_part(model))
    with pytest.raises(ValueError, match=r"draws no site network\.0\.g.*guides\.for_model\(model\)"):
        elbo().loss(model, guide, x, y)


def test_an_autoguide_of_local_sites_is_refused_in_ones_own_loop():
    torch.manual_seed(0)
    network = PyroModule[torch.nn.Sequential](
        SGPAttention(8, 2, inducing=2), torch.nn.Flatten(), torch.nn.Linear(24, 2)
    )
    model = Classifier(network, num_data=4)
    x, y = torch.randn(4, 3, 8), torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match="also guides network.0.g"):
        inference.TraceMeanField_ELBO()(model, AutoNormal(model))(x, y)
    assert inference.TraceMeanField_ELBO()(model, AutoNormal(guides.global_part(model)))(x, y).isfinite()
