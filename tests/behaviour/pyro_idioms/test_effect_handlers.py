"""Effect handlers of Pyro on layers of this library: condition, do, scale, block, lift, substitute,
reparam."""

import math

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from idioms import SIGMA, N, Regression, conjugate
from pyro.infer import SVI, Trace_ELBO, autoguide
from pyro.nn import PyroParam, PyroSample
from pyro.nn.module import to_pyro_module_
from torch.testing import assert_close

from probattn import guides, inference
from probattn.inference import predict


def nodes_of(program, *inputs):
    return poutine.trace(program).get_trace(*inputs).nodes


def test_condition_and_do_reach_the_labels(problem):
    model, x, y = problem
    exact, u = conjugate(model, x, y), torch.randn(1, 2, 2)
    expected = exact.intercept + exact.features @ u.flatten()
    conditioned, done = (
        handler(model, data={"attention.u": u}) for handler in (pyro.condition, pyro.do)
    )
    trace = poutine.trace(conditioned).get_trace(x, y)
    assert_close(trace.nodes["y"]["fn"].mean, expected)
    joint = dist.Normal(expected, SIGMA).log_prob(y).sum() + dist.Normal(0, 1.5).log_prob(u).sum()
    assert_close(trace.log_prob_sum(), joint)
    assert_close(nodes_of(done, x)["y"]["fn"].mean, expected)
    for program in (conditioned, done):
        assert_close(predict(program, guides.for_model(model), x, num_samples=4).mean, expected)
    loss = Trace_ELBO().loss(conditioned, guides.for_model(conditioned), x, y)
    assert_close(loss, -joint.item(), rtol=1e-6, atol=0)


def test_uncondition_draws_the_labels_and_block_hides_u(problem):
    model, x, y = problem
    label = nodes_of(poutine.uncondition(model), x, y)["y"]
    assert not label["is_observed"]
    assert not torch.equal(label["value"], y)
    seen = nodes_of(poutine.block(model, hide=["attention.u"]), x, y)
    assert "attention.u" not in seen
    assert "y" in seen


def test_lift_and_substitute_and_pyro_sample_give_lambda_a_prior(problem):
    model, x, y = problem
    to_pyro_module_(model.attention)
    model.attention.log_scale = PyroParam(model.attention.log_scale.detach())  # what Pyro can lift
    log = dist.transforms.ExpTransform().inv
    prior = dist.TransformedDistribution(dist.Gamma(4.0, 2.0).expand([1, 2]), [log]).to_event(2)

    def check_prior_of_u(program):
        nodes = nodes_of(program, x, y)
        scale, u = (nodes[f"attention.{name}"] for name in ("log_scale", "u"))
        assert_close(
            u["fn"].log_prob(u["value"]),
            dist.Normal(0.0, scale["value"].exp()).log_prob(u["value"]).sum(),
        )

    check_prior_of_u(poutine.lift(model, prior={"attention.log_scale": prior}))
    value = torch.tensor([[0.2, 3.0]])
    replaced = poutine.substitute(model, data={"attention.log_scale": value.log()})
    assert_close(nodes_of(replaced, x, y)["attention.u"]["fn"].stddev, value.expand(1, 2, 2))

    model.attention.log_scale = PyroSample(prior)
    guide = guides.for_model(model)
    assert set(guide.sites) == {"attention.log_scale", "attention.u"}
    check_prior_of_u(model)
    inference.refit_guide(model, guide, 30 * [(x, y)], epochs=4)
    log_scale = inference.posterior_draws(model, guide, [(x, y)], num_samples=400)[
        "attention.log_scale"
    ]
    exact = torch.digamma(torch.tensor(4.0)) - math.log(
        2.0
    )  # F depends on u/λ alone: λ keeps its prior
    assert_close(log_scale.mean(0), exact.expand(1, 2), atol=0.25, rtol=0)


def test_scaled_and_conditioned_models_train_and_predict(problem):
    model, x, y = problem
    guide, losses, means = guides.for_model(model), [], []
    for scale in (1.0, 0.5):
        torch.manual_seed(1)
        programs = poutine.scale(model, scale), poutine.scale(guide, scale)
        losses.append(Trace_ELBO().loss(*programs, x, y) / scale)
        means.append(predict(programs[0], None, x, num_samples=7).mean)
    assert_close(*losses)
    assert_close(*means)
    svi = SVI(
        programs[0], autoguide.AutoNormal(programs[0]), pyro.optim.Adam({"lr": 0.1}), Trace_ELBO()
    )
    losses = [svi.step(x, y) for _ in range(60)]
    assert sum(losses[-20:]) < sum(losses[:20])
    conditioned = pyro.condition(model, data={})
    assert len(predict(conditioned, guides.for_model(conditioned), [x[:5], x[5:]]).mean) == N


def test_models_are_rendered(problem):
    pytest.importorskip("graphviz")
    model, x, y = problem
    for program, edge in (
        (Regression(prior="horseshoe"), "attention.prior.zeta -> attention.u"),
        (model, "u -> y"),
    ):
        assert edge in pyro.render_model(program, model_args=(x, y)).source.replace('"', "")
