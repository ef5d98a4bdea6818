"""Guides of a model's layers: families and priors train, overrides, AutoGuides, what is refused."""

import copy
import math
from statistics import median

import pyro.poutine as poutine
import pytest
import torch
from attention_layers import LAYERS
from elbos import TraceMeanField_ELBO as OnePass
from pyro.infer import TraceMeanField_ELBO, autoguide
from torch import nn
from torch.testing import assert_close
from two_layers import Regression, examples

from probattn import SGPAttention, draws, families, guides, local_posteriors, name_layers
from probattn.inference.objective import guide_checks

DATA = examples()


def listed(guide, model):
    parts = autoguide.AutoGuideList(model)
    parts.append(guide)
    return parts


def check_training(model, guide, *, steps=25, elbo=TraceMeanField_ELBO):
    """Check that the median loss falls (horseshoes have heavy tails), and that all parameters have
    a gradient."""
    guide_checks.materialise(guide, DATA)
    elbo = elbo()(model, guide)
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.05)
    losses, reached = [], set()
    for _ in range(steps):
        optimizer.zero_grad()
        with draws("example"):
            loss = elbo(*DATA) / model.num_data
        loss.backward()
        reached |= {
            name
            for name, p in elbo.named_parameters()
            if p.grad is not None and p.grad.abs().sum() > 0
        }
        optimizer.step()
        losses.append(loss.item())
    assert reached >= {name for name, p in elbo.named_parameters() if p.requires_grad}
    assert all(map(math.isfinite, losses))
    assert median(losses[-5:]) < median(losses[:5]) - 0.02


PAIRS = [("normal", family) for family in families.FAMILIES]
PAIRS += [
    ("laplace", "full"),
    ("student_t", "diagonal"),
    ("horseshoe", "lowrank"),
    ("ard", "delta"),
]


@pytest.mark.parametrize(("prior", "family"), PAIRS)
def test_priors_train_with_families(prior, family):
    model = Regression(prior)
    check_training(model, guides.for_model(model, family))


def test_overrides_go_by_pattern_and_the_last_match_counts():
    model = Regression()
    guide = guides.for_model(model, "full", overrides={"layers.*": "lowrank", "*.1.*": "diagonal"})
    assert isinstance(guide.layers.get_submodule("0.u"), families.LowRank)
    assert isinstance(guide.layers.get_submodule("1.u"), families.Diagonal)
    own = guides.for_model(model, lambda prior: families.Full(prior, init_scale=0.5))
    prior = model.layers[0].sites()["u"]
    assert_close(own.layers.get_submodule("0.u")(prior).stddev, 0.5 * prior.stddev)


def test_bad_families_and_patterns_are_named_and_a_family_without_a_site_is_refused():
    for program, family, options, words in (
        (Regression(), "gaussian", {}, "full, diagonal, lowrank, delta"),
        (
            Regression(),
            "full",
            {"overrides": {"*.7.*": "full"}},
            "no latent site; sites: layers.0.u, layers.1.u",
        ),
        (LAYERS["cgp"](8, 2), "diagonal", {}, "no site for a guide of family 'diagonal'"),
    ):
        with pytest.raises(ValueError, match=words):
            guides.for_model(program, family, **options)
    assert list(guides.for_model(LAYERS["cgp"](8, 2)).parameters()) == []


def test_layers_of_one_name_and_functions_are_errors():
    layers = nn.Sequential(LAYERS["kep-svgp"](8, 2), LAYERS["kep-svgp"](8, 2))
    for program in (guides.for_model, lambda model: poutine.trace(model)(torch.randn(2, 5, 8))):
        with pytest.raises(
            ValueError, match=r"two layers have a site 'u'.*layer.name.*name_layers\(model\)"
        ):
            program(layers)
    with pytest.raises(
        TypeError, match=r"cannot be found in a function.*nn.ModuleList.*name_layers"
    ):
        guides.for_model(lambda x: layers(x))
    name_layers(layers, "layers")
    assert set(guides.for_model(layers)(None)) == {"layers.0.u", "layers.1.u"}


def test_point_masses_with_a_learned_scale_and_guides_of_other_models_are_refused():
    model, fixed = Regression(), Regression(learn_scale=False)
    point = autoguide.AutoDelta
    for right in ((fixed, point(fixed)), (model, guides.for_model(model, "delta"))):
        guide_checks.check(*copy.deepcopy(right))
    for guide in (
        point(model),
        autoguide.AutoLaplaceApproximation(model),
        listed(point(model), model),
    ):
        with pytest.raises(ValueError, match="learn_scale=False"):
            guide_checks.check(model, guide)
    with pytest.raises(ValueError, match="another model"):
        guide_checks.check(model, guides.for_model(fixed))


class Local(Regression):
    """One layer with a global site alone, and one with a local site too."""

    def __init__(self):
        super().__init__()
        self.layers[1] = SGPAttention(8, 2, inducing=3)
        name_layers(self)


@pytest.mark.parametrize("auto", ["AutoNormal", "AutoMultivariateNormal", "AutoDelta"])
def test_pyros_autoguides_train_the_global_part(auto):
    model = Local()
    guide = getattr(autoguide, auto)(local_posteriors(model), init_loc_fn=autoguide.init_to_sample)
    check_training(model, guide, steps=30, elbo=OnePass)
    names = {name for name, _ in guide.named_parameters()}
    assert names
    assert not any("layers.1.g" in name for name in names)


def test_autoguides_of_local_sites_are_refused_in_lists_too():
    model = Local()
    for guide in (autoguide.AutoNormal(model), listed(autoguide.AutoNormal(model), model)):
        with pytest.raises(
            ValueError, match=r"guides layers\.1\.g, .*Auto.*\(local_posteriors\(model"
        ):
            guide_checks.materialise(guide, DATA)
        with pytest.raises(ValueError, match="local_posteriors"):
            guide_checks.check(model, guide)
    guide = listed(autoguide.AutoNormal(local_posteriors(model)), local_posteriors(model))
    guide_checks.materialise(guide, DATA)
    guide_checks.check(model, guide)
