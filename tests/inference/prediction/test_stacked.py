"""Likelihoods of samples that ran one after another equal the one that ran at once, for examples and for tokens."""

import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from probattn.inference.prediction.aggregate import summarise
from probattn.inference.prediction.mixture import Stacked, values
from probattn.models import likelihoods

N = 10
MASK = torch.arange(6) < torch.tensor([6, 1, 3, 4, 2, 5, 5, 6, 1, 2])[:, None]


def user_law(outputs):
    """Laws whose parameters lack the batch shape."""
    return dist.MultivariateNormal(outputs, scale_tril=torch.tensor([[1.0, 0.0], [0.7, 0.4]]))


LIKELIHOODS = {
    "classes": (likelihoods.Categorical(), 3),
    "ordinal": (likelihoods.Ordinal(3), 1),
    "binary": (likelihoods.Bernoulli(), 2),
    "normal": (likelihoods.Gaussian(), 2),
    "student": (likelihoods.StudentT(), 2),
    "counts": (likelihoods.NegativeBinomial(), 2),
    "multivariate": (user_law, 2),
}


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_likelihoods_of_samples_that_ran_one_after_another_equal_the_one_that_ran_at_once(kind):
    likelihood, width = LIKELIHOODS[kind]
    outputs = torch.randn(5, 4, width)
    parts, at_once = [likelihood(one) for one in outputs], likelihood(outputs)
    y = at_once.sample()[0]
    parts[0].log_prob(y)  # may keep what it has computed
    stacked = Stacked(parts)
    assert (stacked.batch_shape, stacked.event_shape) == (at_once.batch_shape, at_once.event_shape)
    assert_close(stacked.log_prob(y), at_once.log_prob(y))
    for name in ("probs", "energy") if kind in ("classes", "ordinal") else ("mean", "variance"):
        if hasattr(at_once, name):
            assert_close(values(stacked, name), values(at_once, name))
    assert stacked.sample((7,)).shape == at_once.sample((7,)).shape


def test_laws_with_transforms_stack():
    loc, y = torch.randn(3, 5), torch.rand(5)
    stacked = Stacked(
        [dist.TransformedDistribution(dist.Normal(m, 1.0), [dist.transforms.ExpTransform()]) for m in loc]
    )
    assert_close(stacked.log_prob(y), dist.LogNormal(loc, 1.0).log_prob(y))
    assert stacked.sample((7,)).shape == (7, 3, 5)


@pytest.mark.parametrize("likelihood", [likelihoods.Gaussian(), likelihoods.Categorical(), user_law])
def test_tokens_of_samples_that_ran_one_after_another_are_those_of_all_at_once(likelihood):
    outputs, options = torch.randn(4, N, 6, 2), {"num_samples": 4, "keep_draws": True}
    per_token = likelihoods.PerToken(likelihood)
    laws = per_token(outputs, MASK), Stacked([per_token(one, MASK) for one in outputs])
    y = laws[0].sample()[0]
    one, other = (summarise(law, y, torch.device("cpu"), **options) for law in laws)
    assert torch.equal(one.mask, other.mask)
    assert_close(one.log_prob(one.labels), other.log_prob(other.labels))
    one, other = one.tokens(), other.tokens()
    assert_close(one.log_prob(one.labels), other.log_prob(other.labels))
    if one.mean is not None:
        assert_close(one.quantiles([0.5]), other.quantiles([0.5]), atol=0.2, rtol=0)
