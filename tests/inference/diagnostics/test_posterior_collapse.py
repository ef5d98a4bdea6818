"""Posterior collapse of guides, against closed forms."""

import math

import pytest
import torch
from pyro.distributions import constraints
from torch import nn
from torch.distributions import transform_to

from probattn import KEPSVGPAttention, SGPAttention, guides, priors
from probattn.draws import at_mean
from probattn.inference import metrics, posterior_summary, predict
from probattn.inference.diagnostics import convergence
from probattn.models import Classifier

F64 = torch.float64


class Pool(nn.Module):
    def forward(self, x):
        return x.mean(-2)


def build(family="full", *, prior=None, overrides=None):
    layer = KEPSVGPAttention.partial(rank=2, prior=prior)
    model = Classifier(nn.Sequential(layer(4, 2), layer(4, 1), Pool(), nn.Linear(4, 3)), num_data=12)
    model.double()
    with torch.no_grad():
        for i in (0, 1):
            model.network[i].log_scale.add_(torch.randn_like(model.network[i].log_scale) / 2)
    return model, guides.for_model(model, family, overrides=overrides)


def set_to_prior(model, guide):
    with torch.no_grad():
        for site in guide.sites:
            q = guide.get_submodule(site)
            q.loc.zero_()
            tril = torch.eye(2).expand_as(q.raw_tril)
            q.raw_tril.copy_(transform_to(constraints.softplus_lower_cholesky).inv(tril))


def test_summary_of_full_gaussians_by_the_formula():
    model, guide = build()
    rows = posterior_summary(model, guide)
    assert [row.site for row in rows] == ["network.0.u", "network.1.u"]
    for i, row in enumerate(rows):
        heads = 2 - i
        lam = model.network[i].log_scale.exp()
        q = guide.get_submodule(row.site)
        kl, spread = 0.0, []
        for h in range(heads):
            for d in range(2):
                tril, m, prior = lam[h, :, None] * q.scale_tril[h, d], lam[h] * q.loc[h, d], torch.diag(lam[h] ** 2)
                s = tril @ tril.T
                kl += 0.5 * ((prior.inverse() @ s).trace() + m @ prior.inverse() @ m + prior.logdet() - s.logdet() - 2)
                spread.append(s.diag().sqrt())
        assert math.isclose(row.kl, kl.item(), rel_tol=1e-9)
        assert row.size == heads * 4
        ratio = (torch.cat(spread) / lam.repeat_interleave(2, 0).flatten()).mean().item()
        assert math.isclose(row.std_ratio[0], ratio, rel_tol=1e-9)


def test_summary_of_other_families():
    model, guide = build(overrides={"network.1.u": "diagonal", "network.0.u": "lowrank"})
    low, diagonal = posterior_summary(model, guide)
    lam, q = model.network[1].log_scale.exp(), guide.network.get_submodule("1").u
    std = lam.unsqueeze(-2) * nn.functional.softplus(q.raw_scale)
    kl = (lam.unsqueeze(-2) / std).log() + (std / lam.unsqueeze(-2)) ** 2 / 2 + q.loc**2 / 2 - 0.5
    assert math.isclose(diagonal.kl, kl.sum().item(), rel_tol=1e-9)
    assert math.isclose(diagonal.std_ratio[0], (std / lam.unsqueeze(-2)).mean().item(), rel_tol=1e-9)
    lam, q = model.network[0].log_scale.exp(), guide.network.get_submodule("0").u
    total = 0.0
    for h in range(2):
        for d in range(2):
            cov = torch.diag(nn.functional.softplus(q.raw_scale[h, d]) ** 2) + q.factor[h, d] @ q.factor[h, d].T
            cov = torch.outer(lam[h], lam[h]) * cov
            posterior = torch.distributions.MultivariateNormal(lam[h] * q.loc[h, d], cov)
            prior = torch.distributions.MultivariateNormal(torch.zeros_like(lam[h]), torch.diag(lam[h] ** 2))
            total += torch.distributions.kl_divergence(posterior, prior).item()
    assert math.isclose(low.kl, total, rel_tol=1e-9)


def test_summary_estimates_a_kl_without_closed_form(monkeypatch):
    """KL(N(m, s²) ‖ Laplace(0, b)) has E|u| of a folded normal."""
    model, guide = build("diagonal", prior="laplace")
    torch.manual_seed(0)
    monkeypatch.setattr(convergence, "DRAWS", 20_000)
    for i, row in enumerate(posterior_summary(model, guide)):
        b = model.network[i].log_scale.exp().unsqueeze(-2).expand(-1, 2, -1)
        q = guide.get_submodule(row.site)
        m, s = (b * math.sqrt(2) * each for each in (q.loc, nn.functional.softplus(q.raw_scale)))
        folded = s * math.sqrt(2 / math.pi) * (-(m**2) / (2 * s**2)).exp() + m * torch.erf(m / (s * math.sqrt(2)))
        kl = (2 * b).log() + folded / b - 0.5 * (2 * math.pi * math.e * s**2).log()
        assert math.isclose(row.kl, kl.sum().item(), rel_tol=0.01)


def posterior_variants(model, guide, data, *, num_samples):
    """Metrics with all latent sites at the mean of q, drawn from q, and from the prior."""
    with at_mean():
        mean = predict(model, guide, data, num_samples=1)
    q, prior = (predict(model, source, data, num_samples=num_samples) for source in (guide, None))
    variants = {"at its mean": mean, "drawn from q": q, "drawn from the prior": prior}
    return {name: metrics.evaluate(prediction) for name, prediction in variants.items()}


def batches():
    x, y = torch.randn(10, 5, 4, dtype=F64), torch.randint(3, (10,))
    return [(x[:6], y[:6]), (x[6:], y[6:])]


def test_with_the_prior_as_q_both_predict_the_same_in_distribution():
    model, guide = build()
    set_to_prior(model, guide)
    with torch.no_grad():
        model.network[3].weight.mul_(40)
        model.network[3].bias.copy_(torch.tensor([4.0, 0.0, 0.0]))
    data = batches()
    torch.manual_seed(0)
    variants = posterior_variants(model, guide, data, num_samples=20_000)
    q, p = variants["drawn from q"], variants["drawn from the prior"]
    assert q != p
    for name in ("nll", "brier"):
        assert math.isclose(q[name], p[name], rel_tol=0.03)
    assert not math.isclose(variants["at its mean"]["nll"], p["nll"], rel_tol=0.1)


def test_at_its_mean_is_the_network_with_the_mean_of_q():
    model, guide = build()
    data = batches()
    with torch.no_grad():
        model.network[3].weight.mul_(5)
    variants = posterior_variants(model, guide, data, num_samples=5)
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    for i in (0, 1):
        layer, u = model.network[i], guide.network.get_submodule(str(i)).u.loc
        e, r, _, _ = layer.scores(x)
        lam = layer.log_scale.exp()
        heads = [(e + r)[:, h] @ u[h].T for h in range(len(lam))]
        x = layer.out(torch.cat(heads, dim=-1))
    probs = model.network[3](x.mean(-2)).softmax(-1)
    expected = metrics.evaluate(probs.detach(), y)
    assert variants["at its mean"] == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert variants["drawn from q"]["nll"] != variants["at its mean"]["nll"]


def local_model(layer, depth=2, dropout=0.0):
    layers = [layer(4, 2) for _ in range(depth)]
    network = nn.Sequential(*layers, nn.Dropout(dropout), Pool(), nn.Linear(4, 3))
    model = Classifier(network, num_data=12).double()
    return model, guides.for_model(model)


def test_variants_of_a_model_of_local_sites_alone():
    """SGPA's g without its noise is at its mean in closed form, and from its prior nowhere near."""
    model, guide = local_model(SGPAttention.partial(inducing=None), depth=1)
    with torch.no_grad():
        model.network[3].weight.mul_(30)
    x, y = (torch.cat(parts) for parts in zip(*batches(), strict=True))
    variants = posterior_variants(model, guide, [(x, y)], num_samples=500)
    layer = model.network[0]
    kernel = layer.attention_matrix(x)
    value = layer.split_heads(layer.query_value(x), 2)[1]
    h = layer.out(layer.join_heads(kernel @ value))
    probs = model.network[3](h.mean(-2)).softmax(-1).detach()
    assert variants["at its mean"] == pytest.approx(metrics.evaluate(probs, y), rel=1e-6, nan_ok=True)
    assert len({each["nll"] for each in variants.values()}) == 3


def test_summary_of_hyperparameters_without_moments_has_robust_ones_of_draws():
    """Horseshoe: τ ~ HalfCauchy has no standard deviation, and neither moment of its guide has a closed form."""
    torch.manual_seed(0)
    model, guide = build(prior=priors.Horseshoe(scale=2.0))
    rows = {row.site: row for row in posterior_summary(model, guide)}
    site = "network.1.prior.tau"
    prior = dict(guides.latent_sites(model))[site]
    scales = []
    for law in (guide.get_submodule(site)(prior), prior):
        draws = law.sample((20_000,)).detach()
        scales.append((draws - draws.median()).abs().median().item())
    assert rows[site].std_ratio[0] == pytest.approx(scales[0] / scales[1], rel=0.3)
    assert all(math.isfinite(value) for row in rows.values() for value in (row.kl, *row.std_ratio))
