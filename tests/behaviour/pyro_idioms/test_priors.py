"""Hierarchical and constrained priors as Pyro programs."""

import math

import elbos
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from idioms import N, Regression
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO

from probattn import families, guides, priors
from probattn.inference import predict


@pytest.mark.parametrize(
    ("prior", "sites"), [("horseshoe", ["tau", "zeta"]), (priors.ARD(), ["precision"])]
)
def test_hierarchical_priors_are_programs(problem, prior, sites):
    (_, x, y), model = problem, Regression(prior=prior)
    guide = guides.for_model(model)
    assert set(guide.sites) == {"attention.u", *(f"attention.prior.{site}" for site in sites)}
    kinds = (Trace_ELBO, TraceMeanField_ELBO, elbos.Trace_ELBO, elbos.TraceMeanField_ELBO)
    elbos.assert_agree(*(elbos.losses(kind, model, guide, x, y) for kind in kinds))
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), Trace_ELBO())
    losses = [svi.step(x, y) for _ in range(60)]
    assert sum(losses[-20:]) < sum(losses[:20])
    assert predict(model, guide, x).mean.shape == (N,)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_positive_prior_has_positive_draws_from_every_family(problem, family):
    _, x, y = problem
    model = Regression(
        prior=lambda scale: dist.Gamma(2 * torch.ones_like(scale), 1 / scale).to_event(3)
    )
    guide = guides.for_model(model, family)
    for elbo in (Trace_ELBO, TraceMeanField_ELBO):
        assert math.isfinite(SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), elbo()).step(x, y))
    assert (poutine.trace(guide).get_trace(x).nodes["attention.u"]["value"] > 0).all()


def test_a_prior_without_to_event_is_named():
    model = Regression(prior=lambda scale: dist.Normal(torch.zeros_like(scale), scale))
    with pytest.raises(
        ValueError, match=r"prior of site attention.u has batch shape \(1, 2, 2\).*\.to_event\(3\)"
    ):
        guides.for_model(model)
