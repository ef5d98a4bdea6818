"""Guides that do not cover the model, refused everywhere."""

import elbos
import pyro
import pyro.distributions as dist
import pytest
import torch
from idioms import Program, Regression

from probattn.inference import TrainOptions, fit, predict


def sample(law):
    pyro.sample("attention.u", law)


def missing(x, y=None):
    pass


def misspelled(x, y=None):
    sample(dist.Normal(torch.zeros(1, 2, 2), 1.0).to_event(3))
    pyro.sample("attention.v", dist.Normal(0.0, 1.0))


def plated(x, y=None):
    with pyro.plate("data", len(x)):
        sample(dist.Normal(torch.zeros(1, 2, 2), 1.0).to_event(3))


@pytest.mark.parametrize(
    ("guide", "words"),
    [
        (missing, "draws no site attention.u"),
        (misspelled, "draws attention.v"),
        (plated, r"plates \(dim, rows, size\) \[\] in the model"),
    ],
)
def test_a_guide_that_does_not_cover_the_model_is_refused_everywhere(problem, guide, words):
    (model, x, y), guide = problem, Program(guide)
    for call in (
        lambda: elbos.Trace_ELBO()(model, guide)(x, y),
        lambda: fit(model, guide, [(x, y)], options=TrainOptions(epochs=1), progress=False),
        lambda: predict(model, guide, x),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_another_event_shape_or_support_is_refused(problem):
    """A shape only where the model can compute with it at all: prediction cannot, and raises
    PyTorch's error."""
    model, x, y = problem
    guide = Program(lambda x, y=None: sample(dist.Normal(torch.zeros(2, 2), 1.0).to_event(2)))
    with pytest.raises(
        ValueError, match=r"event shape \(1, 2, 2\) .* in the model and event shape \(2, 2\)"
    ):
        elbos.Trace_ELBO()(model, guide)(x, y)
    with pytest.raises(RuntimeError):
        predict(model, guide, x)
    positive = Regression(
        prior=lambda scale: dist.Gamma(2 * torch.ones_like(scale), 1 / scale).to_event(3)
    )
    guide = Program(lambda x, y=None: sample(dist.Normal(-torch.ones(1, 2, 2), 0.01).to_event(3)))
    with pytest.raises(ValueError, match="within the support"):
        elbos.Trace_ELBO()(positive, guide)(x, y)
