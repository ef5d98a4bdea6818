"""NUTS through the layers' own programs, against closed forms and numerical integration."""

import warnings

import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from torch import nn

from probattn import CGPAttention, KEPSVGPAttention, SGPAttention
from probattn.draws import at_mean
from probattn.inference.posterior import nuts as module
from probattn.inference.posterior.nuts import ConvergenceWarning, nuts
from probattn.models import Classifier, Supervised

F64, NOISE = torch.float64, 0.8


class First(nn.Module):
    def forward(self, x):
        return x[..., 0, :]


def identity_out(layer):
    with torch.no_grad():
        layer.out.weight.copy_(torch.eye(*layer.out.weight.shape))
        layer.out.bias.zero_()
    return layer


def gaussian(layer, num_data):
    return Supervised(identity_out(layer), lambda f: dist.Normal(f, NOISE).to_event(2), num_data=num_data).double()


def dense(covariance):
    """Σ of the one head, by example."""
    return (covariance.tril @ covariance.tril.mT)[:, 0]


def assert_moments(draws, effective, mean, covariance, *, sigmas=5.0):
    """Of draws (S, K) within Monte Carlo error of the truth: std/√n for means, √((1 + ρ²) / n) σ σ' for covariances."""
    std, count = covariance.diag().sqrt(), effective.min().item()
    assert ((draws.mean(0) - mean).abs() < sigmas * std / count**0.5).all()
    outer = std.outer(std)
    error = (((outer**2 + covariance**2) / count) ** 0.5) * sigmas
    assert ((torch.cov(draws.T) - covariance).abs() < error).all()


def test_the_posterior_of_kep_svgp_with_gaussian_noise_is_the_closed_form():
    """MATH 1(e) with E + R: S = (Λ⁻² + σ⁻² Φᵀ Φ)⁻¹, m = σ⁻² S Φᵀ y in every column."""
    model = gaussian(KEPSVGPAttention(2, 1, rank=2, eta=0.5), 4)
    with torch.no_grad():
        model.network.log_scale.copy_(torch.tensor([[0.4, -0.3]]))
        x = torch.randn(4, 3, 2, dtype=F64) + 1
        y = model(x)
        e, r, _, _ = model.network.scores(x)
        lam = model.network.scale[0]
        features = ((e + r)[:, 0] / lam).flatten(0, 1)
        covariance = (torch.diag(lam**-2) + features.T @ features / NOISE**2).inverse()
        mean = (covariance @ features.T @ y.flatten(0, 1) / NOISE**2).T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        chains = nuts(model, (x, y), num_samples=80, warmup_steps=40)
    assert list(chains.draws) == ["network.u"]
    assert chains.draws["network.u"].shape == (80, 1, 2, 2)
    for d in range(2):
        u, effective = chains.draws["network.u"][:, 0, d], chains.effective["network.u"][0, d]
        assert_moments(u, effective, mean[d], covariance)
    assert abs(covariance[0, 1] / covariance.diag().prod().sqrt()) > 0.25


def test_the_posterior_of_one_scalar_under_classification_is_that_of_a_grid():
    network = nn.Sequential(KEPSVGPAttention(2, 1, rank=1), First(), nn.Linear(2, 3))
    model = Classifier(network, num_data=12).double()
    with torch.no_grad():
        network[2].weight.mul_(8)
        network[0].out.weight.mul_(4)
        network[0].log_scale.fill_(0.5)
        torch.manual_seed(1)
        x = torch.randn(12, 3, 2, dtype=F64)
        with at_mean():
            base = network(x)
        y = poutine.condition(model, data={"network.0.u": torch.full((1, 1, 1), 2.0, dtype=F64)})(x)
        grid = torch.linspace(-10, 10, 4001, dtype=F64)
        slope = poutine.condition(network, data={"network.0.u": torch.ones(1, 1, 1, dtype=F64)})(x) - base
        logits = base + grid[:, None, None] * slope
        log_density = logits.log_softmax(-1)[:, torch.arange(12), y].sum(-1) - 0.5 * (grid / network[0].scale) ** 2
        weights = log_density.flatten().softmax(0)
        mean = (weights * grid).sum()
        std = (weights * (grid - mean) ** 2).sum().sqrt()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        chains = nuts(model, (x, y), num_samples=80, warmup_steps=40, num_chains=2)
    u, effective = chains.draws["network.0.u"].flatten(), chains.effective["network.0.u"].item()
    assert len(u) == 160
    assert 0.3 < std < 0.8 * network[0].scale.item()
    assert abs(u.mean() - mean) < 5 * std / effective**0.5
    assert abs(u.std() / std - 1) < 5 / (2 * effective) ** 0.5
    assert not torch.equal(u[:80], u[80:])


def law_of(layer, x):
    with torch.no_grad():
        parts = (*layer.split_heads(layer.query_key_value(x), 3), *layer.split_heads(layer.latent(x), 1))
        return layer.law(layer._given(*parts, None))


def moments_given_labels(law, y, *, noise):
    """Of z_o and z_q of each example, N = 2: N(0, P) and its observations z_k, ν and y, conditioned as one Gaussian."""
    p, q, k = (dense(each) for each in (law.prior, law.query_covariance, law.key_covariance))
    a_q, a_k = (each[:, 0] for each in law.means(torch.eye(2, dtype=F64).expand(2, 1, -1, -1)))
    found = []
    for b in range(2):
        maps = torch.cat([torch.eye(2, dtype=F64), a_q[b], a_k[b], a_q[b], a_q[b]])  # z_o, z_q, z_k, nu, y
        own = torch.block_diag(torch.zeros(2, 2), q[b], k[b], q[b], q[b] + noise**2 * torch.eye(2)).to(F64)
        own[2:4, 8:] = own[8:, 2:4] = q[b]  # y is z_q + noise
        joint = maps @ p[b] @ maps.T + own
        seen = torch.cat([law.observed_key[b, 0, :, 0], law.mean[b, 0, :, 0], y[b, :, 0]])
        gain = torch.linalg.solve(joint[4:, 4:], joint[4:, :4]).T
        found.append((gain @ seen, joint[:4, :4] - gain @ joint[4:, :4]))
    return found


@pytest.mark.parametrize("collapsed", [True, False])
def test_cgp_posteriors_given_the_labels(collapsed):
    """z_q's is p(z_q | z_k) conditioned on y, not its prior; through z_o, both are conditioned on ν, too."""
    layer = CGPAttention(1, 1, noise=0.5, collapsed=collapsed, alpha=1.0, regulariser_norm="example")
    model = gaussian(layer, 2)
    x, y = torch.randn(2, 2, 1, dtype=F64) * 2, torch.randn(2, 2, 1, dtype=F64) * 2
    law = law_of(layer, x)
    expected = {}
    if collapsed:
        prior, nu = dense(law.predictive), law.mean[:, 0, :, 0]
        gain = prior @ (prior + NOISE**2 * torch.eye(2, dtype=F64)).inverse()
        means = nu + (gain @ (y[..., 0] - nu).unsqueeze(-1)).squeeze(-1)
        expected["network.z_q"] = list(zip(means, prior - gain @ prior, strict=True))
        assert ((means - nu).abs() > 0.3).any()
    else:
        both = moments_given_labels(law, y, noise=NOISE)
        expected["network.z_o"] = [(mean[:2], covariance[:2, :2]) for mean, covariance in both]
        expected["network.z_q"] = [(mean[2:], covariance[2:, 2:]) for mean, covariance in both]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        chains = nuts(model, (x, y), num_samples=80, warmup_steps=40)
    assert set(chains.draws) == set(expected)
    for site, moments in expected.items():
        assert chains.draws[site].shape == (80, 2, 1, 2, 1)
        for example, (mean, covariance) in enumerate(moments):
            draws, effective = chains.draws[site][:, example, 0, :, 0], chains.effective[site][example]
            assert_moments(draws, effective, mean, covariance)


def test_a_canonical_process_without_a_density_is_refused():
    model = gaussian(CGPAttention(1, 1, alpha=0.0), 2)
    batch = (torch.randn(2, 2, 1, dtype=F64), torch.randn(2, 2, 1, dtype=F64))
    with pytest.raises(ValueError, match="network.z_o: its posterior is improper.*collapsed=True"):
        nuts(model, batch)


@pytest.mark.slow
@pytest.mark.parametrize("drawn", ["joint", "marginal"])
def test_the_posterior_of_sgpa_under_gaussian_noise_is_that_of_its_program(drawn):
    """f = A u + g with u ~ N(0, I), g ~ N(0, C) or N(0, diag C): jointly Gaussian, with y = f + noise."""
    layer = SGPAttention(2, 1, inducing=1, draws=drawn)
    model = gaussian(layer, 2)
    x, y = torch.randn(2, 2, 2, dtype=F64), torch.randn(2, 2, 2, dtype=F64)
    with torch.no_grad():
        query, value = layer.split_heads(layer.query_value(x), 2)
        a, _ = layer.form._mean(layer, layer._tokens(query, value, None))
        a = a[:, 0]  # (example, token, 1)
        c = layer.attention_matrix(x)[:, 0] - a @ a.mT
        c = c if drawn == "joint" else torch.diag_embed(c.diagonal(dim1=-2, dim2=-1))
        joint = torch.block_diag(torch.eye(1, dtype=F64), c[0], c[1])
        design = torch.cat([a.flatten(0, 1), torch.eye(4, dtype=F64)], 1)
        covariance = (joint.inverse() + design.T @ design / NOISE**2).inverse()
        means = covariance @ design.T @ y.flatten(0, 1) / NOISE**2  # (5, column)
    chains = nuts(model, (x, y), num_samples=1000, warmup_steps=500)
    assert not chains.problems
    for column in range(2):
        u = chains.draws["network.u"][:, 0, column]
        g = chains.draws["network.g"][:, :, 0, :, column].flatten(1)
        effective = torch.cat([each.flatten() for each in chains.effective.values()])
        assert_moments(torch.cat([u, g], 1), effective, means[:, column], covariance)


@pytest.mark.slow
def test_a_small_classifier_of_two_layers_converges_from_dispersed_starts():
    layers = (KEPSVGPAttention(4, 2, rank=2), KEPSVGPAttention(4, 1, rank=2))
    model = Classifier(nn.Sequential(*layers, First(), nn.Linear(4, 3)), num_data=8).double()
    batch = (torch.randn(8, 4, 4, dtype=F64), torch.randint(3, (8,)))
    chains = nuts(model, batch, num_samples=500, warmup_steps=300, num_chains=2)
    assert not chains.problems


def test_few_draws_warn_and_say_why():
    model = gaussian(KEPSVGPAttention(2, 1, rank=1), 2)
    batch = (torch.randn(2, 3, 2, dtype=F64), torch.randn(2, 3, 2, dtype=F64))
    modes = [each.training for each in model.modules()]
    with pytest.warns(ConvergenceWarning, match="network.u has R̂ .* effective sample size"):
        chains = nuts(model, batch, num_samples=12, warmup_steps=5)
    assert len(chains.problems) >= 1
    assert [each.training for each in model.modules()] == modes
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_trajectory_where_numerics_refuse_is_rejected():
    """NumericalError counts as energy NaN: the sampler stays where it can compute."""

    class Cliff(nn.Module):
        def forward(self, f):
            assert not self.training
            if f.abs().max() > 2:
                raise module.NumericalError("not positive definite")
            return f

    network = nn.Sequential(KEPSVGPAttention(2, 1, rank=1), Cliff())
    model = Supervised(network, lambda f: dist.Normal(f, 0.5).to_event(2), num_data=2).double()
    identity = network[0].out
    with torch.no_grad():
        identity.weight.fill_(0.5)
        identity.bias.zero_()
    batch = (torch.randn(2, 3, 2, dtype=F64), torch.zeros(2, 3, 2, dtype=F64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        chains = nuts(model, batch, num_samples=30, warmup_steps=30)
    assert chains.draws["network.0.u"].isfinite().all()


def test_refusals():
    model = gaussian(KEPSVGPAttention(2, 1, rank=1), 4)
    batch = (torch.randn(2, 3, 2, dtype=F64), torch.randn(2, 3, 2, dtype=F64))
    with pytest.raises(ValueError, match="site y has scale 2 in"):
        nuts(model, batch)
    still = Classifier(nn.Sequential(First(), nn.Linear(2, 3)), num_data=2).double()
    with pytest.raises(ValueError, match="no latent sites"):
        nuts(still, (batch[0], torch.tensor([0, 1])), num_samples=4, warmup_steps=1)


def test_local_sites_cannot_be_sampled_at_padding():
    """Their density counts real tokens alone, so that chains would fly off at padded ones; u has no tokens."""
    batch = (torch.randn(2, 3, 2, dtype=F64), torch.randn(2, 3, 2, dtype=F64))
    mask = torch.tensor([[True, True, False], [True, True, True]])

    def model(layer):
        return Supervised(layer, lambda f, mask: dist.Normal(f, NOISE).mask(mask[..., None]).to_event(2), num_data=2)

    with pytest.raises(ValueError, match=r"network.z_q: its posterior is improper, at padding"):
        nuts(model(CGPAttention(2, 1, collapsed=True)).double(), (*batch, mask))
    for layer, given in (
        (CGPAttention(2, 1, collapsed=True), torch.ones_like(mask)),
        (KEPSVGPAttention(2, 1, rank=1), mask),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            chains = nuts(model(layer).double(), (*batch, given), num_samples=4, warmup_steps=4)
        assert all(draws.isfinite().all() for draws in chains.draws.values())
