"""Guides that do not cover the model, refused everywhere."""

import elbos
import pyro
import pyro.distributions as dist
import pytest
import torch

from probattn.inference import TrainOptions, fit, predict


def wrong_guides():
    def missing(x, y=None):
        pass

    def misspelled(x, y=None):
        pyro.sample("attention.u", dist.Normal(torch.zeros(1, 2, 2), 1.0).to_event(3))
        pyro.sample("attention.v", dist.Normal(0.0, 1.0))

    def plated(x, y=None):
        with pyro.plate("data", len(x)):
            pyro.sample("attention.u", dist.Normal(torch.zeros(1, 2, 2), 1.0).to_event(3))

    return {
        "draws no site attention.u": missing,
        "draws attention.v": misspelled,
        r"plates \(dim, rows, size\) \[\] in the model": plated,
    }


@pytest.mark.parametrize("message", wrong_guides())
def test_a_guide_that_does_not_cover_the_model_is_refused_everywhere(idioms, problem, message):
    model, x, y = problem
    guide = idioms.Program(wrong_guides()[message])
    with pytest.raises(ValueError, match=message):
        elbos.Trace_ELBO()(model, guide)(x, y)
    with pytest.raises(ValueError, match=message):
        fit(model, guide, [(x, y)], options=TrainOptions(epochs=1), progress=False)
    with pytest.raises(ValueError, match=message):
        predict(model, guide, x)


def test_another_event_shape_is_refused(idioms, problem):
    """Only where the model can compute with it at all: prediction cannot, and raises PyTorch's error."""
    model, x, y = problem

    def guide(x, y=None):
        pyro.sample("attention.u", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))

    guide = idioms.Program(guide)
    with pytest.raises(ValueError, match=r"event shape \(1, 2, 2\) .* in the model and event shape \(2, 2\)"):
        elbos.Trace_ELBO()(model, guide)(x, y)
    with pytest.raises(RuntimeError):
        predict(model, guide, x)


def test_a_guide_on_another_support_is_refused(idioms, problem):
    _, x, y = problem
    model = idioms.Regression(prior=lambda scale: dist.Gamma(2 * torch.ones_like(scale), 1 / scale).to_event(3))

    def guide(x, y=None):
        pyro.sample("attention.u", dist.Normal(-torch.ones(1, 2, 2), 0.01).to_event(3))

    with pytest.raises(ValueError, match="within the support"):
        elbos.Trace_ELBO()(model, idioms.Program(guide))(x, y)
