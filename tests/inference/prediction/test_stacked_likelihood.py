"""Likelihoods of draws that ran one after another equal the likelihood that ran at once."""

import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from probattn.inference.prediction.stacked_likelihood import Stacked, stack
from probattn.models import likelihoods

KINDS = {
    "categorical": (likelihoods.Categorical(), 3, torch.tensor([0, 2, 1, 1])),
    "ordinal": (likelihoods.Ordinal(3), 1, torch.tensor([0, 2, 1, 1])),
    "bernoulli": (likelihoods.Bernoulli(), 2, torch.ones(4, 2)),
    "gaussian": (likelihoods.Gaussian(), 2, torch.randn(4, 2)),
    "heteroscedastic": (likelihoods.HeteroscedasticGaussian(), 4, torch.randn(4, 2)),
    "student_t": (likelihoods.StudentT(), 2, torch.randn(4, 2)),
    "poisson": (likelihoods.Poisson(), 2, torch.ones(4, 2)),
    "negative_binomial": (likelihoods.NegativeBinomial(), 2, torch.ones(4, 2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_stack_is_the_likelihood_of_stacked_outputs(kind):
    likelihood, width, y = KINDS[kind]
    outputs = torch.randn(5, 4, width)
    parts, whole = [likelihood(each) for each in outputs], likelihood(outputs)
    parts[0].log_prob(y)  # may keep what it has computed
    joined = stack(parts)
    assert type(joined) is type(whole)
    assert (joined.batch_shape, joined.event_shape) == (whole.batch_shape, whole.event_shape)
    assert_close(joined.log_prob(y), whole.log_prob(y))
    if kind not in ("categorical", "ordinal"):
        assert_close(joined.mean, whole.mean)
        assert_close(joined.variance, whole.variance)
    else:
        assert_close(getattr(joined, "energy", None), getattr(whole, "energy", None))
        assert_close(joined.probs, whole.probs)
    torch.manual_seed(0)
    drawn = joined.sample()
    torch.manual_seed(0)
    assert_close(drawn, whole.sample())


def test_tokens_keep_their_mask():
    likelihood, mask = likelihoods.TokenCategorical(), torch.tensor([[True, True, False], [True, False, False]])
    outputs, y = torch.randn(5, 2, 3, 4), torch.tensor([[0, 1, -100], [3, -100, -100]])
    joined = stack([likelihood(each, mask) for each in outputs])
    assert_close(joined.log_prob(y), likelihood(outputs, mask).log_prob(y))


def test_distributions_with_unknown_parts_are_kept_side_by_side():
    locs, y = torch.randn(5, 4), torch.rand(4)
    parts = [dist.TransformedDistribution(dist.Normal(loc, 1.0), dist.transforms.ExpTransform()) for loc in locs]
    joined = stack(parts)
    assert isinstance(joined, Stacked)
    whole = dist.LogNormal(locs, 1.0)
    assert_close(joined.log_prob(y), whole.log_prob(y))
    assert_close(joined.cdf(y), whole.cdf(y))
    assert joined.sample((7,)).shape == (7, 5, 4)
    each = torch.rand(5, 4)
    assert_close(joined.log_prob(each), whole.log_prob(each))
