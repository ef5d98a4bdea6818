"""MCMC and stochastic-gradient MCMC on layers of this library."""

import pytest
import torch
from pyro.infer import HMC, MCMC, NUTS
from torch.testing import assert_close

from probattn import inference
from probattn.inference import posterior_predictive_check, predict, sgld

N, SIGMA = 12, 0.4


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(NUTS, id="NUTS", marks=pytest.mark.slow),
        pytest.param(lambda model: HMC(model, step_size=0.3, num_steps=6), id="HMC"),
    ],
)
def test_chains_are_posteriors(idioms, problem, kernel):
    model, x, y = problem
    _, location, precision, features, intercept = idioms.conjugate(model, x, y)
    chain = MCMC(kernel(model), num_samples=400, warmup_steps=100, disable_progbar=True)
    chain.run(x, y)
    covariance = torch.linalg.inv(precision)
    found = predict(model, chain, [(x, y)], num_samples=400)
    deviation = (features @ covariance @ features.T).diagonal()
    assert_close(found.mean, intercept + features @ location, atol=0.1, rtol=0)
    assert_close(found.variance, deviation + SIGMA**2, atol=0.05, rtol=0.2)
    check = posterior_predictive_check(model, chain, [(x, y)], num_replicates=100)
    assert 0.02 < check.p_values["mean"].item() < 0.98
    pytest.importorskip("arviz_base")
    exported = inference.to_datatree(model, chain, [(x, y)], num_samples=100)
    assert exported.posterior["attention.u"].shape == (1, 100, 1, 2, 2)


def test_stochastic_gradient_langevin_dynamics_samples_the_posterior(idioms, problem):
    model, x, y = problem
    _, location, precision, features, intercept = idioms.conjugate(model, x, y)
    samples = sgld(model, [(x, y)], num_samples=1200, warmup_steps=200, step_size=0.02)
    found = predict(model, samples, [(x, y)], num_samples=600)
    assert_close(found.mean, intercept + features @ location, atol=0.15, rtol=0)
    deviation = (features @ torch.linalg.inv(precision) @ features.T).diagonal()
    assert_close(found.variance, deviation + SIGMA**2, atol=0.06, rtol=0.3)


def test_samples_of_another_shape_or_without_a_global_site_are_refused(problem):
    model, x, _ = problem
    with pytest.raises(ValueError, match=r"shape \('R', 1, 2, 2\)"):
        predict(model, {"attention.u": torch.randn(2, 50, 1, 2, 2)}, x)
    with pytest.raises(KeyError, match=r"attention\.u"):
        predict(model, {"attention.v": torch.randn(50, 1, 2, 2)}, x)
    with pytest.raises(AttributeError, match="get_samples"):
        predict(model, lambda x, y=None: None, x)
