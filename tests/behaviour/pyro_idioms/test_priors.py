"""Hierarchical and constrained priors as Pyro programs."""

import math

import elbos
import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO

from probattn import families, guides, priors
from probattn.inference import predict

N, SIGMA = 12, 0.4


def test_hierarchical_priors_are_programs(idioms, problem):
    _, x, y = problem
    for prior, sites in (("horseshoe", {"prior.tau", "prior.zeta"}), (priors.ARD(), {"prior.precision"})):
        model = idioms.Regression(prior=prior)
        guide = guides.for_model(model)
        assert set(guide.sites) == {"attention.u", *(f"attention.{site}" for site in sites)}
        estimates = []
        for kind in (Trace_ELBO, TraceMeanField_ELBO, elbos.Trace_ELBO, elbos.TraceMeanField_ELBO):
            values = torch.tensor([kind().loss(model, guide, x, y) for _ in range(80)])
            estimates.append((values.mean(), values.std() / 80**0.5))
        for value, error in estimates[1:]:
            assert (value - estimates[0][0]).abs() < 5 * (error + estimates[0][1])
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), Trace_ELBO())
        losses = [svi.step(x, y) for _ in range(60)]
        assert sum(losses[-20:]) < sum(losses[:20])
        assert predict(model, guide, x).mean.shape == (N,)
        pyro.clear_param_store()


def test_a_positive_prior_has_positive_draws_from_every_family(idioms, problem):
    _, x, y = problem
    for family in families.FAMILIES:
        model = idioms.Regression(prior=lambda scale: dist.Gamma(2 * torch.ones_like(scale), 1 / scale).to_event(3))
        guide = guides.for_model(model, family)
        losses = [
            SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), elbo()).step(x, y)
            for elbo in (Trace_ELBO, TraceMeanField_ELBO)
        ]
        assert all(map(math.isfinite, losses))
        assert (poutine.trace(guide).get_trace(x).nodes["attention.u"]["value"] > 0).all()
        pyro.clear_param_store()


def test_a_prior_without_to_event_is_named(idioms):
    model = idioms.Regression(prior=lambda scale: dist.Normal(torch.zeros_like(scale), scale))
    with pytest.raises(ValueError, match=r"prior of site attention.u has batch shape \(1, 2, 2\).*\.to_event\(3\)"):
        guides.for_model(model)
