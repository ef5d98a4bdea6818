"""Distribution functions against scipy, moments that do not exist, and draws that leave generators alone."""

import math

import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch.distributions.transforms import SigmoidTransform

from probattn.inference.prediction.marginals import (
    cdf,
    device_of,
    fixed_seed,
    is_discrete,
    masked_part,
    moments,
    unwrap,
)

F64 = torch.float64
LOC, SCALE = torch.tensor([-1.0, 0.3, 2.0], dtype=F64), torch.tensor([0.5, 1.0, 3.0], dtype=F64)
REAL = torch.tensor([-40.0, -2.0, 0.1, 0.9, 1.0, 3.0, 500.0], dtype=F64)[:, None]
COUNTS = torch.tensor([-3.0, -1.0, 0.0, 1.0, 2.5, 30.0], dtype=F64)[:, None]
MEAN = LOC.exp()
CASES = {
    "normal": (dist.Normal(LOC, SCALE), stats.norm(LOC, SCALE), REAL),
    "student": (dist.StudentT(2.5, LOC, SCALE), stats.t(2.5, LOC, SCALE), REAL),
    "cauchy": (dist.Cauchy(LOC, SCALE), stats.cauchy(LOC, SCALE), REAL),
    "laplace": (dist.Laplace(LOC, SCALE), stats.laplace(LOC, SCALE), REAL),
    "lognormal": (dist.LogNormal(LOC, SCALE), stats.lognorm(SCALE, scale=MEAN), REAL),
    "gamma": (dist.Gamma(SCALE, 1 / MEAN), stats.gamma(SCALE, scale=MEAN), REAL),
    "uniform": (dist.Uniform(LOC, LOC + SCALE), stats.uniform(LOC, SCALE), REAL),
    "poisson": (dist.Poisson(MEAN), stats.poisson(MEAN), COUNTS),
    "negative": (dist.NegativeBinomial(1.7, logits=LOC), stats.nbinom(1.7, (-LOC).sigmoid()), COUNTS),
    "bernoulli": (dist.Bernoulli(logits=LOC), stats.bernoulli(LOC.sigmoid()), COUNTS),
}


@pytest.mark.parametrize("name", CASES)
def test_distribution_functions_are_scipys_also_outside_of_the_support(name):
    distribution, truth, values = CASES[name]
    for wrapped in (distribution, distribution.to_event(1), distribution.mask(torch.ones(3) > 0).to_event(1)):
        found = cdf(wrapped, values)
        assert found.dtype == F64
        torch.testing.assert_close(found, torch.as_tensor(truth.cdf(values)), rtol=1e-7, atol=1e-12)
    assert is_discrete(distribution) == is_discrete(distribution.to_event(1)) == (values is COUNTS)


def test_tails_of_gaussians_in_float32_are_computed_in_float64():
    found = cdf(dist.Normal(torch.zeros(1), 1.0), torch.tensor([-9.0]))
    torch.testing.assert_close(found, torch.tensor([stats.norm.cdf(-9)], dtype=F64), rtol=1e-6, atol=0)


def test_scalars_of_multivariate_gaussians_and_of_expanded_distributions():
    tril = torch.tensor([[1.0, 0.0], [0.7, 0.4]], dtype=F64)
    loc, at = torch.tensor([0.2, -1.0], dtype=F64), torch.tensor([0.5, -0.5], dtype=F64)
    sd = (tril @ tril.T).diagonal().sqrt()
    expected = torch.as_tensor(stats.norm(loc, sd).cdf(at))
    torch.testing.assert_close(cdf(dist.MultivariateNormal(loc, scale_tril=tril), at), expected)
    low = dist.LowRankMultivariateNormal(loc, tril[:, :1], torch.full((2,), 0.3, dtype=F64))
    sd = (tril[:, 0] ** 2 + 0.3).sqrt()
    torch.testing.assert_close(cdf(low, at), torch.as_tensor(stats.norm(loc, sd).cdf(at)))
    expanded = dist.ExpandedDistribution(dist.Normal(loc, 1.0), (4, 2))
    found = cdf(expanded, at)
    torch.testing.assert_close(found, torch.as_tensor(stats.norm(loc, 1.0).cdf(at)).expand(4, 2))


@pytest.mark.parametrize(
    "distribution", [dist.Geometric(torch.tensor([0.3])), dist.Dirichlet(torch.ones(2, 3)), dist.VonMises(LOC, SCALE)]
)
def test_a_distribution_function_that_is_not_known_says_so(distribution):
    with pytest.raises(NotImplementedError):
        cdf(distribution, torch.tensor([0.5]))


def test_moments_that_have_no_formula_are_nan():
    logit_normal = dist.TransformedDistribution(dist.Normal(LOC, SCALE), [SigmoidTransform()])
    for distribution in (logit_normal.to_event(1), dist.Cauchy(LOC, SCALE).to_event(1)):
        mean, variance = moments(distribution)
        assert mean.shape == variance.shape == (3,)
        assert mean.isnan().all()
        assert not variance.isfinite().any()
    mean, variance = moments(dist.StudentT(1.5, LOC, SCALE))
    assert torch.equal(mean, LOC)
    assert (variance == math.inf).all()


def test_what_is_seeded_is_the_same_every_time_and_no_generator_moves():
    state, found = torch.get_rng_state(), []
    for _ in range(2):
        with fixed_seed(torch.device("cpu")):
            found.append([torch.rand(3), torch.rand(3)])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(torch.stack(found[0]), torch.stack(found[1]))
    assert not torch.equal(*found[0])


def test_what_lies_inside_of_wrappers():
    mask = torch.tensor([[True, False]])
    inner = dist.Normal(torch.zeros(1, 2, 3), 1.0)
    masked = inner.to_event(1).mask(mask)
    wrapped = masked.to_event(1)
    assert unwrap(wrapped) is inner
    assert masked_part(wrapped) is masked
    assert masked_part(inner.to_event(1)) is None
    assert device_of(wrapped) == torch.device("cpu")
    assert device_of(dist.TransformedDistribution(dist.Normal(LOC, SCALE), [SigmoidTransform()])).type == "cpu"
    assert device_of(dist.Normal(torch.zeros(2, device="meta"), 1.0, validate_args=False).to_event(1)).type == "meta"
