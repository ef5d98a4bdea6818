"""ELBOs and their terms by the formula, local sites in one pass against two, and precision under
autocast."""

from contextlib import ExitStack, nullcontext

import pytest
import torch
from elbos import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from torch import nn
from torch.distributions import kl_divergence
from torch.testing import assert_close

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    draws,
    guides,
)
from probattn.inference.objective import guide_checks
from probattn.models import Classifier
from probattn.weights import kl_weight

N, BATCH = 12, 4
SITES = ("network.0.u", "network.1.u")
ELBOS = pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, Trace_ELBO])


def build(family="full", *, prior=None, dtype=torch.float64):
    layer = KEPSVGPAttention.partial(rank=2, eta=0.5, prior=prior)
    network = nn.Sequential(layer(4, 2), layer(4, 1), nn.Flatten(-2), nn.Linear(20, 3))
    model = Classifier(network, num_data=N).to(dtype)
    x, y = torch.randn(BATCH, 5, 4, dtype=dtype), torch.randint(3, (BATCH,))
    with torch.no_grad():
        for i in (0, 1):
            network[i].log_scale.add_(torch.randn_like(network[i].log_scale) / 3)
    guide = guides.for_model(model, family) if isinstance(family, str) else family(model)
    guide_checks.materialise(guide, (x, y))
    guide = guide.to(dtype)
    with torch.no_grad():  # away from the prior
        for parameter in guide.parameters():
            parameter.add_(torch.randn_like(parameter) / 5)
    return model, guide, x, y


def under(*handlers, weight=1.0, local=1.0):
    stack = ExitStack()
    stack.enter_context(kl_weight(weight, local=local))
    for number in handlers:
        stack.enter_context(draws(number))
    return stack


@ELBOS
@pytest.mark.parametrize("family", ["full", "diagonal", "lowrank"])
@pytest.mark.parametrize("handlers", [(), ("example",), (3,), ("example", 3)])
def test_the_kl_is_that_of_the_formula(family, elbo, handlers):
    """w KL(q ‖ p) once, whatever the number of draws; sampled, its mean over draws."""
    model, guide, x, y = build(family)
    elbo = elbo()
    with under(*handlers, weight=0.7):
        loss = elbo(model, guide)(x, y)
    terms, shape = elbo.terms(), (3 if 3 in handlers else 1, BATCH)
    for site in SITES:
        u = elbo.traces[1].nodes[site]["value"]
        u = u.expand(*shape, *u.shape[-3:])
        prior = model.get_submodule(site.removesuffix(".u")).sites()["u"]
        q = guide.get_submodule(site)(prior)
        closed = kl_divergence(q, prior)
        sampled = (q.expand(shape).log_prob(u) - prior.expand(shape).log_prob(u)).mean()
        kl = closed if isinstance(elbo, TraceMeanField_ELBO) else sampled
        assert terms[f"kl/{site}"] == pytest.approx(0.7 * kl.item(), rel=1e-9)
    assert sum(terms.values()) == pytest.approx(loss.item(), rel=1e-10)
    assert terms["penalty/network.1.ksvd"] > 0


@ELBOS
@pytest.mark.parametrize(
    "family",
    ["delta", AutoNormal, AutoMultivariateNormal, AutoDelta, AutoLowRankMultivariateNormal],
)
def test_terms_of_other_guides_sum_to_the_loss(family, elbo):
    """Also of several particles."""
    model, guide, x, y = build(family, prior="laplace")
    elbo = elbo(num_particles=2)
    with under("example", weight=0.7):
        loss = elbo(model, guide)(x, y)
    terms = elbo.terms()
    assert sum(terms.values()) == pytest.approx(loss.item(), rel=1e-10)
    assert {"nll", *(f"kl/{site}" for site in SITES)} < set(terms)


@ELBOS
@pytest.mark.parametrize("family", ["full", AutoNormal])
def test_under_autocast_samples_densities_and_kl_stay_in_float32(elbo, family):
    model, guide, x, y = build(family, dtype=torch.float32)
    seen, losses, terms, objective = [], [], [], elbo()
    model.network[0].query_key.register_forward_hook(
        lambda module, inputs, output: seen.append(output.dtype)
    )
    for half in (False, True):
        torch.manual_seed(0)
        with draws("example"), torch.autocast("cpu", torch.bfloat16, enabled=half):
            losses.append(objective(model, guide)(x, y))
        terms.append(objective.terms())
    assert seen == [torch.float32, torch.bfloat16]
    assert losses[1].dtype == torch.float32
    assert terms[0]["nll"] != terms[1]["nll"]
    assert_close(losses[1], losses[0], rtol=0.05, atol=0.5)
    for site in SITES:
        assert terms[0][f"kl/{site}"] == terms[1][f"kl/{site}"]
        assert all(trace.nodes[site]["value"].dtype == torch.float32 for trace in objective.traces)
    losses[1].backward()
    assert all(
        p.grad.dtype == torch.float32 and p.grad.isfinite().all()
        for p in objective.last.parameters()
    )


def test_terms_leave_out_what_is_drawn_from_its_prior_by_design():
    network = nn.Sequential(
        CGPAttention(8, 2, canonical_guide="prior"), nn.Flatten(-2), nn.Linear(24, 2)
    )
    model, elbo = Classifier(network, num_data=4), TraceMeanField_ELBO()
    for number in (None, 3):
        with draws(number) if number else nullcontext():
            loss = elbo(model, guides.for_model(model))(
                torch.randn(4, 3, 8), torch.zeros(4, dtype=torch.long)
            )
        assert set(elbo.terms()) == {"nll", "penalty/network.0.nu", "penalty/network.0.z_k"}
        assert sum(elbo.terms().values()) == pytest.approx(loss.item(), rel=1e-5)
