"""Effect handlers of Pyro on layers of this library: condition, do, scale, block, lift, substitute, reparam."""

import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, autoguide
from pyro.infer.reparam import LocScaleReparam
from pyro.nn import PyroParam, PyroSample
from pyro.nn.module import to_pyro_module_
from torch.testing import assert_close

from probattn import guides, inference
from probattn.inference import predict

N, SIGMA = 12, 0.4


def test_condition_and_do_reach_the_labels(idioms, problem):
    model, x, y = problem
    _, _, _, features, intercept = idioms.conjugate(model, x, y)
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
    assert_close(Trace_ELBO().loss(conditioned, guides.for_model(conditioned), x, y), -joint.item())


def test_uncondition_draws_the_labels(problem):
    model, x, y = problem
    trace = poutine.trace(poutine.uncondition(model)).get_trace(x, y)
    assert not trace.nodes["y"]["is_observed"]
    assert not torch.equal(trace.nodes["y"]["value"], y)


def test_scaled_and_blocked_programs_scale_the_loss(problem):
    model, x, y = problem
    guide = guides.for_model(model)
    torch.manual_seed(1)
    loss = Trace_ELBO().loss(model, guide, x, y)
    torch.manual_seed(1)
    scaled = Trace_ELBO().loss(poutine.scale(model, 0.1), poutine.scale(guide, 0.1), x, y)
    assert_close(scaled, 0.1 * loss)
    seen = poutine.trace(poutine.block(model, hide=["attention.u"])).get_trace(x, y).nodes
    assert "attention.u" not in seen
    assert "y" in seen


def test_lift_and_substitute_and_pyro_sample_give_lambda_a_prior(problem):
    model, x, y = problem
    to_pyro_module_(model.attention)
    model.attention.log_scale = PyroParam(model.attention.log_scale.detach())  # what Pyro can lift
    log = dist.transforms.ExpTransform().inv
    prior = dist.TransformedDistribution(dist.Gamma(4.0, 2.0).expand([1, 2]), [log]).to_event(2)
    lifted = poutine.lift(model, prior={"attention.log_scale": prior})
    trace = poutine.trace(lifted).get_trace(x, y)
    scale, u = (trace.nodes[f"attention.{name}"] for name in ("log_scale", "u"))
    assert_close(u["fn"].log_prob(u["value"]), dist.Normal(0.0, scale["value"].exp()).log_prob(u["value"]).sum())
    value = torch.tensor([[0.2, 3.0]])
    replaced = poutine.substitute(model, data={"attention.log_scale": value.log()})
    trace = poutine.trace(replaced).get_trace(x, y)
    assert_close(trace.nodes["attention.u"]["fn"].stddev, value.expand(1, 2, 2))

    model.attention.log_scale = PyroSample(prior)
    guide = guides.for_model(model)
    assert set(guide.sites) == {"attention.log_scale", "attention.u"}
    trace = poutine.trace(model).get_trace(x, y)
    scale, u = (trace.nodes[f"attention.{name}"] for name in ("log_scale", "u"))
    assert_close(u["fn"].log_prob(u["value"]), dist.Normal(0.0, scale["value"].exp()).log_prob(u["value"]).sum())
    inference.refit_guide(model, guide, 50 * [(x, y)], epochs=5)
    found = inference.posterior_draws(model, guide, [(x, y)], num_samples=400)["attention.log_scale"].exp()
    exact = torch.digamma(torch.tensor(4.0)) - math.log(2.0)  # F depends on u/λ alone: λ keeps its prior
    assert_close(found.log().mean(0), exact.expand(1, 2), atol=0.25, rtol=0)


def test_loc_scale_reparam_has_the_same_law(idioms, problem):
    _, x, y = problem
    model = idioms.Regression(prior=lambda scale: dist.Normal(torch.zeros_like(scale), scale).to_event(3))
    evidence, _, precision, *_ = idioms.conjugate(model, x, y)
    other = poutine.reparam(model, config={"attention.u": LocScaleReparam(0.0)})
    guide = autoguide.AutoMultivariateNormal(other)
    svi = SVI(other, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.975}), Trace_ELBO(num_particles=4))
    for _ in range(120):
        svi.step(x, y)
    assert abs(idioms.bound(other, guide, x, y) + evidence) < 0.25


def test_wrapped_models_train_and_predict_from_the_prior(problem):
    model, x, y = problem
    scaled = poutine.scale(model, scale=0.5)
    torch.manual_seed(1)
    expected = predict(model, None, x, num_samples=7).mean
    torch.manual_seed(1)
    assert_close(predict(scaled, None, x, num_samples=7).mean, expected)
    svi = SVI(scaled, autoguide.AutoNormal(scaled), pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    losses = [svi.step(x, y) for _ in range(60)]
    assert sum(losses[-20:]) < sum(losses[:20])
    both = pyro.condition(model, data={})
    assert len(predict(both, guides.for_model(both), [x[:5], x[5:]]).mean) == N


def test_models_are_rendered(idioms, problem):
    pytest.importorskip("graphviz")
    model, x, y = problem
    horseshoe = pyro.render_model(idioms.Regression(prior="horseshoe"), model_args=(x, y)).source
    assert "attention.prior.tau" in horseshoe
    assert '"attention.prior.zeta" -> "attention.u"' in horseshoe or "attention.prior.zeta -> attention.u" in horseshoe
    source = pyro.render_model(model, model_args=(x, y)).source
    assert '"attention.u" -> y' in source or "attention.u -> y" in source
