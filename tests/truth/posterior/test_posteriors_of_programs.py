"""Log joints of the layers' own programs are those of the closed-form posteriors, and NUTS samples
them."""

import pyro.poutine as poutine
import pytest
import torch
from conjugate import NOISE, conjugate, gaussian, posterior, sgpa_parts
from float64 import eye64, randn64
from pyro.infer import MCMC, NUTS
from pyro.infer.autoguide.initialization import init_to_sample
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from probattn import CGPAttention, SGPAttention
from probattn.inference.posterior.frozen import frozen


def assert_is_posterior(model, batch, shapes, log_density):
    """log p(z, y) − log p(z | y) is the same number, log p(y), at all values z of the latent
    sites."""
    evidence = []
    for _ in range(4):
        values = {site: randn64(shape) for site, shape in shapes.items()}
        with frozen(model):
            joint = (
                poutine.trace(poutine.condition(model, data=values))
                .get_trace(*batch)
                .log_prob_sum()
            )
        evidence.append(joint - log_density(*values.values()))
    assert_close(torch.stack(evidence), evidence[0].expand(4), rtol=0, atol=1e-6)


def test_the_posterior_of_kep_svgp_with_gaussian_noise_is_the_closed_form_and_that_of_nuts():
    """MATH 1(e) with E + R: S = (Λ⁻² + σ⁻² Φᵀ Φ)⁻¹, m = σ⁻² S Φᵀ y in every column."""
    model, x, y = conjugate(num_data=4)
    mean, covariance = posterior(model, x, y)
    exact = MultivariateNormal(mean, covariance)
    assert_is_posterior(
        model, (x, y), {"network.u": (1, 2, 2)}, lambda u: exact.log_prob(u[0]).sum()
    )
    with frozen(model):
        chain = MCMC(
            NUTS(model, init_strategy=init_to_sample),
            num_samples=80,
            warmup_steps=40,
            disable_progbar=True,
        )
        chain.run(x, y)
    samples = chain.get_samples()["network.u"][:, 0]
    effective = chain.diagnostics()["network.u"]["n_eff"]
    std = covariance.diag().sqrt()
    assert ((samples.mean(0) - mean).abs() < 5 * std / effective.min() ** 0.5).all()
    assert ((samples.std(0) / std - 1).abs() < 5 / (2 * effective.min()) ** 0.5).all()


def dense(*covariances):
    """Σ of the one head, by example."""
    return [(covariance.tril @ covariance.tril.mT)[:, 0] for covariance in covariances]


def law_of(layer, x):
    with torch.no_grad():
        return layer.law(x, None)


def moments_given_labels(law, y):
    """Of z_o and z_q of each example, N = 2: N(0, P) and its observations z_k, ν and y, conditioned
    as one Gaussian."""
    p, q, k = dense(law.prior, law.query_covariance, law.key_covariance)
    a_q, a_k = (maps[:, 0] for maps in law.means(eye64(2).expand(2, 1, -1, -1)))
    moments = []
    for b in range(2):
        maps = torch.cat([eye64(2), a_q[b], a_k[b], a_q[b], a_q[b]])  # z_o, z_q, z_k, nu, y
        noise = torch.block_diag(
            torch.zeros(2, 2), q[b], k[b], q[b], q[b] + NOISE**2 * torch.eye(2)
        ).double()
        noise[2:4, 8:] = noise[8:, 2:4] = q[b]  # y is z_q + noise
        joint = maps @ p[b] @ maps.T + noise
        seen = torch.cat([law.observed_key[b, 0, :, 0], law.mean[b, 0, :, 0], y[b, :, 0]])
        gain = torch.linalg.solve(joint[4:, 4:], joint[4:, :4]).T
        moments.append((gain @ seen, joint[:4, :4] - gain @ joint[4:, :4]))
    return moments


@pytest.mark.parametrize("collapsed", [True, False])
def test_cgp_posteriors_given_the_labels(collapsed):
    """z_q's is p(z_q | z_k) conditioned on y, not its prior; through z_o, both are conditioned on
    ν, too."""
    layer = CGPAttention(
        1, 1, noise=0.5, collapsed=collapsed, alpha=1.0, regulariser_norm="example"
    )
    model, (x, y) = gaussian(layer, 2), randn64(2, 2, 2, 1) * 2
    law, shape = law_of(layer, x), (2, 1, 2, 1)
    if collapsed:
        (prior,), nu = dense(law.predictive), law.mean[:, 0, :, 0]
        gain = prior @ (prior + NOISE**2 * eye64(2)).inverse()
        means = nu + (gain @ (y[..., 0] - nu).unsqueeze(-1)).squeeze(-1)
        exact = MultivariateNormal(means, prior - gain @ prior)
        sites = {"network.z_q": shape}
    else:
        means, covariances = map(torch.stack, zip(*moments_given_labels(law, y), strict=True))
        exact = MultivariateNormal(means, (covariances + covariances.mT) / 2)
        sites = {"network.z_o": shape, "network.z_q": shape}

    def log_density(*values):
        return exact.log_prob(torch.cat([value[:, 0, :, 0] for value in values], 1)).sum()

    assert_is_posterior(model, (x, y), sites, log_density)


@pytest.mark.parametrize("drawn", ["joint", "marginal"])
def test_the_posterior_of_sgpa_under_gaussian_noise_is_that_of_its_program(drawn):
    """f = A u + g with u ~ N(0, I), g ~ N(0, C) or N(0, diag C): jointly Gaussian, with y = f +
    noise."""
    layer = SGPAttention(2, 1, inducing=1, draws=drawn)
    model, (x, y) = gaussian(layer, 2), randn64(2, 2, 2, 2)
    a, c = sgpa_parts(layer, x)
    design = torch.cat([a.flatten(0, 1), eye64(4)], 1)
    prior = torch.block_diag(eye64(1), *c)
    covariance = (prior.inverse() + design.T @ design / NOISE**2).inverse()
    means = (covariance @ design.T @ y.flatten(0, 1) / NOISE**2).T
    exact = MultivariateNormal(means, covariance)

    def log_density(u, g):
        return exact.log_prob(torch.cat([u[0], g[:, 0].movedim(-1, 0).flatten(1)], 1)).sum()

    assert_is_posterior(
        model, (x, y), {"network.u": (1, 2, 1), "network.g": (2, 1, 2, 2)}, log_density
    )
