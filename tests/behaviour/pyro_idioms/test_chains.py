"""MCMC and stochastic-gradient MCMC on layers of this library."""

import pytest
import torch
from idioms import SIGMA, conjugate
from pyro.infer import HMC, MCMC, NUTS
from torch.testing import assert_close

from probattn import inference
from probattn.inference import posterior_predictive_check, predict, sgld


@pytest.mark.parametrize("kernel", [pytest.param("NUTS", marks=pytest.mark.slow), "HMC"])
def test_chains_are_posteriors(problem, kernel):
    model, x, y = problem
    kernel = NUTS(model) if kernel == "NUTS" else HMC(model, step_size=0.4, num_steps=4)
    chain = MCMC(kernel, num_samples=250, warmup_steps=50, disable_progbar=True)
    chain.run(x, y)
    exact, prediction = conjugate(model, x, y), predict(model, chain, [(x, y)], num_samples=250)
    assert_close(prediction.mean, exact.mean, atol=0.1, rtol=0)
    assert_close(prediction.variance, exact.variance + SIGMA**2, atol=0.05, rtol=0.2)
    check = posterior_predictive_check(model, chain, [(x, y)], num_replicates=100)
    assert 0.02 < check.p_values["mean"].item() < 0.98
    pytest.importorskip("arviz_base")
    exported = inference.to_datatree(model, chain, [(x, y)], num_samples=100)
    assert exported.posterior["attention.u"].shape == (1, 100, 1, 2, 2)


def test_stochastic_gradient_langevin_dynamics_samples_the_posterior(problem):
    model, x, y = problem
    samples = sgld(model, [(x, y)], num_samples=600, warmup_steps=100, step_size=0.03)
    exact, prediction = conjugate(model, x, y), predict(model, samples, [(x, y)], num_samples=600)
    assert_close(prediction.mean, exact.mean, atol=0.15, rtol=0)
    assert_close(prediction.variance, exact.variance + SIGMA**2, atol=0.06, rtol=0.3)


def test_samples_of_another_shape_or_without_a_global_site_are_refused(problem):
    model, x, _ = problem
    for samples, error, words in (
        ({"attention.u": torch.randn(2, 50, 1, 2, 2)}, ValueError, r"shape \('R', 1, 2, 2\)"),
        ({"attention.v": torch.randn(50, 1, 2, 2)}, KeyError, r"attention\.u"),
        (lambda x, y=None: None, ValueError, "draws no site"),
        (3, AttributeError, "get_samples"),
    ):
        with pytest.raises(error, match=words):
            predict(model, samples, x)
