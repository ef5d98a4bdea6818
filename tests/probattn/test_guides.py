"""Guides: families, swaps with priors, analytic KLs, point masses, AutoGuides."""

import copy

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from elbos import TraceMeanField_ELBO as OnePass
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoGuideList,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    init_to_sample,
)
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    SGPAttention,
    draws,
    families,
    guides,
    local_posteriors,
    local_sites,
    name_layers,
    priors,
)
from probattn.inference.objective import guide_checks

AUTO = {
    "AutoNormal": AutoNormal,
    "AutoMultivariateNormal": AutoMultivariateNormal,
    "AutoLowRankMultivariateNormal": AutoLowRankMultivariateNormal,
    "AutoDelta": AutoDelta,
}
ANALYTIC = {
    *((prior, family) for prior in ("normal", "horseshoe", "ard") for family in ("full", "diagonal", "lowrank")),
    ("laplace", "diagonal"),
    *((prior, "delta") for prior in priors.PRIORS),
}


class Regression(nn.Module):
    """Two stochastic layers and a Gaussian likelihood over the mean token."""

    num_data = 40

    def __init__(self, prior="normal", learn_scale=True, **options):
        super().__init__()
        make = KEPSVGPAttention.partial(rank=2, prior=prior, learn_scale=learn_scale, scale=0.8, **options)
        self.layers = nn.Sequential(make(8, 2), make(8, 2))
        name_layers(self)

    def forward(self, x, y=None):
        with local_sites(batch=len(x), num_data=self.num_data):
            mean = self.layers(x).mean((-2, -1))
            return pyro.sample("y", dist.Normal(mean, 0.5), obs=y, infer={"local": True})


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(10, 5, 8, generator=generator), torch.randn(10, generator=generator)


def seeded(make, *args, **options):
    torch.manual_seed(0)
    return make(*args, **options)


def train(model, guide, data, steps=60, elbo=TraceMeanField_ELBO):
    guide_checks.materialise(guide, data)
    elbo = elbo()(model, guide)
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.02)
    losses, reached = [], set()
    for _ in range(steps):
        optimizer.zero_grad()
        with draws("example"):
            loss = elbo(*data) / model.num_data
        loss.backward()
        reached |= {name for name, p in elbo.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
        optimizer.step()
        losses.append(loss.item())
    trained = {name for name, p in elbo.named_parameters() if p.requires_grad}
    return losses, trained - reached


@pytest.mark.parametrize(
    ("prior", "family"),
    [
        pytest.param(prior, family, marks=() if prior == "normal" or family == "full" else pytest.mark.slow)
        for prior in priors.PRIORS
        for family in families.FAMILIES
    ],
)
def test_every_prior_trains_with_every_family(prior, family, data):
    model = seeded(Regression, prior)
    guide = guides.for_model(model, family)
    losses, unreached = train(model, guide, data)
    assert all(torch.tensor(losses).isfinite())
    assert unreached == set()
    assert sum(losses[-10:]) / 10 < sum(losses[:5]) / 5 - 0.05


@pytest.mark.slow
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("projection", ["data", "plain"])
@pytest.mark.parametrize("merge", ["add", "concat", "concat_lowrank"])
@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("prior", priors.PRIORS)
def test_the_whole_grid_trains(prior, family, merge, projection, elbo, data):
    model = seeded(Regression, prior, merge=merge, projection=projection, tokens=5)
    losses, unreached = train(model, guides.for_model(model, family), data, elbo=elbo)
    assert all(torch.tensor(losses).isfinite())
    assert unreached == set()
    assert sum(losses[-10:]) / 10 < sum(losses[:5]) / 5 - 0.05


@pytest.mark.parametrize("auto", AUTO.values(), ids=AUTO)
@pytest.mark.parametrize("prior", ["normal", "laplace"])
def test_pyros_autoguides_work_in_their_place(auto, prior, data):
    model = seeded(Regression, prior, learn_scale=auto is not AutoDelta)
    guide = auto(model, init_loc_fn=init_to_sample)
    losses, unreached = train(model, guide, data)
    assert all(torch.tensor(losses).isfinite())
    assert unreached == set()
    assert sum(losses[-10:]) / 10 < sum(losses[:5]) / 5 - 0.05


@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("prior", priors.PRIORS)
def test_which_pairs_have_an_analytic_kl(prior, family):
    layer = seeded(KEPSVGPAttention, 8, 2, rank=2, prior=prior)
    present = layer.sites()["u"]
    posterior = guides.for_model(layer, family).u(present)
    if (prior, family) not in ANALYTIC:
        with pytest.raises(NotImplementedError):
            kl_divergence(posterior, present)
        return
    kl = kl_divergence(posterior, present)
    samples = posterior.sample((50_000,))
    estimates = posterior.log_prob(samples) - present.log_prob(samples)
    assert kl.shape == ()
    assert (kl - estimates.mean()).abs() < 5 * estimates.std() / 50_000**0.5 + 1e-4


def test_full_is_a_gaussian_with_its_own_covariance_per_output():
    layer = seeded(KEPSVGPAttention, 8, 2, rank=3).double()
    guide = guides.for_model(layer).double()
    with torch.no_grad():
        guide.u.raw_tril += torch.randn(2, 3, 3, 3, dtype=torch.float64)
    posterior = guide.u(layer.sites()["u"])
    u = torch.randn(2, 3, 3, dtype=torch.float64)
    expected = 0.0
    for h in range(2):
        for d in range(3):
            covariance = guide.u.scale_tril[h, d] @ guide.u.scale_tril[h, d].T
            expected += MultivariateNormal(guide.u.loc[h, d], covariance).log_prob(u[h, d])
    assert_close(posterior.log_prob(u), expected)


@pytest.mark.parametrize("family", ["full", "diagonal", "lowrank"])
def test_families_start_near_a_prior_draw_at_a_share_of_its_scale(family):
    prior = priors.normal(torch.full((2, 400, 3), 2.0))
    posterior = seeded(families.FAMILIES[family], prior)(prior)
    assert posterior.stddev.square().mean().sqrt().item() == pytest.approx(0.2, rel=0.05)
    assert posterior.mean.std().item() == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("prior", ["normal", "laplace", "student_t"])
def test_delta_maximises_the_density_of_the_whitened_variable(elbo, prior, data):
    """The loss with a point mass does not depend on Λ through p(u): d loss / d log λ comes from the KSVD term only."""
    model = seeded(Regression, prior)
    for layer in model.layers:
        layer.eta = 0.0
    guide = guides.for_model(model, "delta")
    loss = elbo()(model, guide)(*data)
    loss.backward()
    for layer in model.layers:
        assert layer.log_scale.grad.abs().max() < 1e-3 * loss.abs()
    unit = priors.resolve(prior)(torch.ones(2, 2, 2))
    whitened = [guide.get_submodule(f"layers.{i}.u").whitened * unit.stddev for i in range(2)]
    u = {f"layers.{i}.u": v * model.layers[i].scale.unsqueeze(-2) for i, v in enumerate(whitened)}
    trace = poutine.trace(poutine.condition(model, data=u)).get_trace(*data)
    trace.compute_log_prob()
    log_prior = sum(unit.log_prob(v) + unit.stddev.log().sum() for v in whitened)
    assert_close(loss, -(trace.nodes["y"]["log_prob_sum"] + log_prior), rtol=1e-4, atol=1e-2)


def test_overrides_go_by_pattern_and_the_last_match_counts():
    model = Regression()
    guide = guides.for_model(model, "full", overrides={"layers.*": "lowrank", "*.1.*": "diagonal"})
    assert isinstance(guide.layers.get_submodule("0.u"), families.LowRank)
    assert isinstance(guide.layers.get_submodule("1.u"), families.Diagonal)
    own = guides.for_model(model, lambda prior: families.Full(prior, init_scale=0.5))
    prior = model.layers[0].sites()["u"]
    assert_close(own.layers.get_submodule("0.u")(prior).stddev, 0.5 * prior.stddev)


def test_bad_families_and_patterns_are_named():
    with pytest.raises(ValueError, match="full, diagonal, lowrank, delta"):
        guides.for_model(Regression(), "gaussian")
    with pytest.raises(ValueError, match=r"matches no latent site; sites: layers.0.u, layers.1.u"):
        guides.for_model(Regression(), overrides={"*.7.*": "full"})


def test_layers_of_one_name_and_functions_are_errors():
    layers = nn.Sequential(KEPSVGPAttention(8, 2, rank=2), KEPSVGPAttention(8, 2, rank=2))
    for program in (guides.for_model, lambda model: poutine.trace(model)(torch.randn(2, 5, 8))):
        with pytest.raises(ValueError, match=r"two layers have a site 'u'.*layer.name.*name_layers\(model\)"):
            program(layers)
    with pytest.raises(TypeError, match=r"cannot be found in a function.*nn.ModuleList.*name_layers"):
        guides.for_model(lambda x: layers(x))
    name_layers(layers, "layers")
    assert set(guides.for_model(layers)(None)) == {"layers.0.u", "layers.1.u"}


def test_the_guide_holds_the_model_without_its_parameters():
    model = Regression()
    guide = guides.for_model(model)
    assert {name for name, _ in guide.named_parameters()} == {
        "layers.0.u.loc",
        "layers.0.u.raw_tril",
        "layers.1.u.loc",
        "layers.1.u.raw_tril",
    }


def test_guide_follows_the_models_present_scale():
    model = Regression()
    guide = guides.for_model(model, "delta")
    before = guide(None)["layers.0.u"]
    with torch.no_grad():
        model.layers[0].log_scale += 1.0
    assert_close(guide(None)["layers.0.u"], before * torch.e)


def test_materialise_makes_an_autoguides_parameters_once(data):
    model = Regression()
    guide = AutoNormal(model)
    assert not list(guide.parameters())
    guide_checks.materialise(guide, data)
    before = {name: p.clone() for name, p in guide.named_parameters()}
    assert before
    guide_checks.materialise(guide, data)
    assert all(torch.equal(p, before[name]) for name, p in guide.named_parameters())


def test_point_masses_with_a_learned_scale_and_guides_of_other_models_are_refused():
    model, fixed = Regression(), Regression(learn_scale=False)
    guide_checks.check(fixed, AutoDelta(fixed))
    guide_checks.check(model, guides.for_model(model, "delta"))
    for auto in (AutoDelta, AutoLaplaceApproximation):
        with pytest.raises(ValueError, match="learn_scale=False"):
            guide_checks.check(model, auto(model))
    parts = AutoGuideList(model)
    parts.append(AutoDelta(model))
    with pytest.raises(ValueError, match="learn_scale=False"):
        guide_checks.check(model, parts)
    with pytest.raises(ValueError, match="another model"):
        guide_checks.check(model, guides.for_model(fixed))
    copied, copied_guide = copy.deepcopy((model, guides.for_model(model)))
    guide_checks.check(copied, copied_guide)


class Local(nn.Module):
    """One layer with a global site alone, and one with a local site too."""

    num_data = 40

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(KEPSVGPAttention(8, 2, rank=2), SGPAttention(8, 2, inducing=3))
        name_layers(self)

    def forward(self, x, y=None):
        with local_sites(batch=len(x), num_data=self.num_data):
            mean = self.layers(x).mean((-2, -1))
            return pyro.sample("y", dist.Normal(mean, 0.5), obs=y, infer={"local": True})


def test_guides_are_built_over_the_global_sites():
    model = Local()
    assert [name for name, _ in guides.latent_sites(model)] == ["layers.0.u", "layers.1.u"]
    guide = guides.for_model(model, overrides={"*.1.u": "diagonal"})
    assert isinstance(guide.layers.get_submodule("1.u"), families.Diagonal)
    with pytest.raises(ValueError, match=r"'\*\.g' matches no latent site"):
        guides.for_model(model, overrides={"*.g": "full"})


def test_local_posteriors_observe_what_has_its_posterior_and_nothing_else(data):
    model = Local()
    whole, part = (poutine.trace(each).get_trace(*data) for each in (model, local_posteriors(model)))
    sites = [[name for name, node in each.nodes.items() if node["type"] == "sample"] for each in (whole, part)]
    assert set(sites[1]) - set(sites[0]) == {"layers.1.g_kl"}
    assert {"layers.0.u", "layers.1.u", "layers.0.ksvd", "layers.1.g", "y"} == set(sites[0])
    latent = {name for name, node in part.nodes.items() if node["type"] == "sample" and not node["is_observed"]}
    assert latent == {"layers.0.u", "layers.1.u"}


@pytest.mark.parametrize("auto", AUTO.values(), ids=AUTO)
def test_pyros_autoguides_train_the_global_part(auto, data):
    torch.manual_seed(0)
    model = Local()
    guide = auto(local_posteriors(model), init_loc_fn=init_to_sample)
    guide_checks.materialise(guide, data)
    names = {name for name, _ in guide.named_parameters()}
    assert names
    assert not any("layers.1.g" in name for name in names)
    losses, unreached = train(model, guide, data, steps=30, elbo=OnePass)
    assert all(torch.tensor(losses).isfinite())
    assert unreached == set()
    assert sum(losses[-5:]) < sum(losses[:5]) - 0.1


def test_autoguides_of_local_sites_are_refused_in_lists_too(data):
    model = Local()
    for make in (lambda: AutoNormal(model), lambda: _listed(AutoNormal(model), model)):
        guide = make()
        with pytest.raises(ValueError, match=r"guides layers\.1\.g, .*Auto.*\(local_posteriors\(model"):
            guide_checks.materialise(guide, data)
        with pytest.raises(ValueError, match="local_posteriors"):
            guide_checks.check(model, guide)
    guide = _listed(AutoNormal(local_posteriors(model)), local_posteriors(model))
    guide_checks.materialise(guide, data)
    guide_checks.check(model, guide)


def _listed(guide, model):
    parts = AutoGuideList(model)
    parts.append(guide)
    return parts


def test_a_family_without_a_site_is_refused():
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="no site for a guide of family 'diagonal'"):
        guides.for_model(CGPAttention(8, 2), "diagonal")
    assert list(guides.for_model(CGPAttention(8, 2)).parameters()) == []
