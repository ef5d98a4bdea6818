"""Posterior networks against predict with the same draws."""

import copy

import pyro
import pyro.distributions as dist
import pytest
import torch
from export_cases import LAYERS
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn

from probattn import (
    SGPAttention,
    guides,
    local_posteriors,
)
from probattn.functional.errors import NumericalError
from probattn.inference import mean_network, predictor_network
from probattn.inference.objective import guide_checks
from probattn.models import Supervised, TextTagger
from probattn.models.likelihoods import Bernoulli, Categorical, Gaussian, TokenCategorical

layers = pytest.mark.parametrize("name", LAYERS)
spread = pytest.mark.parametrize("num_samples", [None, 3])


@layers
@spread
def test_a_network_predicts_what_predict_does_with_the_same_draws(
    images, network_of, predicted, same_as, seeded, vit, name, num_samples
):
    model, guide = vit(LAYERS[name], depth=2)
    x = images()
    expected = seeded(predicted, model, guide, x, num_samples)
    found = seeded(lambda: network_of(model, guide, num_samples)(x))
    same_as(expected, found, rtol=0, atol=1e-12)
    more = {"entropy", "expected_entropy", "mutual_information"} if num_samples else set()
    assert set(found) == {"probs", "energy"} | more
    if num_samples and name not in ("softmax", "kernel", "anchored"):
        assert (found["mutual_information"] > 1e-6).any()


@pytest.mark.parametrize("likelihood", [Gaussian, Bernoulli])
@spread
def test_other_labels_have_mean_and_variance(
    images, network_of, predicted, same_as, seeded, vit, likelihood, num_samples
):
    model, guide = vit(likelihood=likelihood())
    x = images()
    expected = seeded(predicted, model, guide, x, num_samples)
    found = seeded(lambda: network_of(model, guide, num_samples)(x))
    assert set(found) == {"mean", "variance"}
    same_as(expected, found)
    if likelihood is Gaussian:  # noise, and what the draws add to it
        assert (found["variance"] > 1).all() if num_samples else (found["variance"] == 1).all()


@spread
def test_a_class_of_every_token_is_0_at_padding(network_of, predicted, same_as, seeded, text, texts, num_samples):
    model, guide = text(kind=TextTagger, likelihood=TokenCategorical())
    x, mask = texts()
    expected = seeded(predicted, model, guide, [(x, None, mask)], num_samples)
    found = seeded(lambda: network_of(model, guide, num_samples)(x, mask))
    same_as(expected, found)
    assert (found["probs"].sum(-1)[mask] > 0.99).all()
    assert (found["probs"][~mask] == 0).all()


@pytest.mark.parametrize("family", ["diagonal", "lowrank", "delta", AutoNormal, AutoMultivariateNormal, None])
@spread
def test_any_guide(images, network_of, predicted, same_as, seeded, vit, family, num_samples):
    model, _ = vit()
    x = images()
    if isinstance(family, type):
        guide = family(local_posteriors(model))
        guide_checks.materialise(guide, (x, torch.zeros(len(x))))
    else:
        guide = None if family is None else guides.for_model(model, family)
    expected = seeded(predicted, model, guide, x, num_samples)
    same_as(expected, seeded(lambda: network_of(model, guide, num_samples)(x)))


class Own(nn.Module):
    """A guide of a user that asks for the inputs, and draws a site of each example where ``local``."""

    def __init__(self, site, prior, local=False):
        super().__init__()
        self.site, self.prior, self.local = site, prior, local

    def forward(self, x, y=None, mask=None):
        pyro.sample(self.site, self.prior, infer={"local": True} if self.local else {})


def test_a_guide_that_asks_for_inputs_gets_them(images, predicted, same_as, vit):
    model, _ = vit()
    x = images()
    guide = Own(*next(guides.latent_sites(model)))
    with pytest.raises(TypeError, match="'x'"):
        mean_network(model, guide)
    same_as(predicted(model, guide, x, None), mean_network(model, guide, x)(x))


def test_what_a_network_cannot_fix_is_refused(images, vit):
    model, guide = vit()
    x = images()
    site, prior = next(guides.latent_sites(model))
    with pytest.raises(AttributeError, match="value_u"):
        mean_network(model, Own(site, prior, local=True), x)(x)
    with pytest.raises(ValueError, match="built for another model"):
        mean_network(copy.deepcopy(model), guide)
    with pytest.raises(ValueError, match="materialise"):
        mean_network(model, AutoNormal(local_posteriors(model)))
    with pytest.raises(ValueError, match="positive number"):
        predictor_network(model, guide, num_samples=0)


class Stated(PyroModule):
    """A network with a statement of Pyro's."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x) + pyro.sample("shift", dist.Normal(torch.zeros(3), 1.0).to_event(1))


class Bayesian(PyroModule):
    """A network with a bias that is a sample site."""

    def __init__(self):
        super().__init__()
        self.linear = PyroModule[nn.Linear](4, 3)
        self.linear.bias = PyroSample(dist.Normal(torch.zeros(3), 1.0).to_event(1))

    def forward(self, x):
        return self.linear(x)


def test_sites_outside_layers_are_refused(images, vit):
    x, y = torch.randn(5, 4), torch.zeros(5, dtype=torch.long)
    for network, site in ((Stated(), "shift"), (Bayesian(), "network.linear.bias")):
        model = Supervised(network, Categorical(), num_data=5)
        guide = AutoNormal(model)
        guide_checks.materialise(guide, (x, y))
        with pytest.raises(ValueError, match=f"site {site}.* belongs to no layer"):
            predictor_network(model, guide)
    for guide in (None, guides.for_model(model)):
        with pytest.raises(ValueError, match="belongs to no layer"):
            mean_network(model, guide)


@spread
def test_a_network_is_a_copy_that_stays_as_it_is(images, network_of, vit, num_samples):
    model, guide = vit(dropout=0.5)
    x = images()
    network = network_of(model, guide, num_samples).train()
    assert model.training
    assert all(parameter.requires_grad for parameter in [*model.parameters(), *guide.parameters()])
    assert not any(parameter.requires_grad for parameter in network.parameters())
    before = network(x)
    with torch.no_grad():
        for parameter in [*model.parameters(), *guide.parameters()]:
            parameter += 1
    same = network(x)
    assert all(torch.equal(before[name], same[name]) for name in before)
    wrapped = nn.Sequential(network).train()
    assert torch.equal(wrapped(x)["probs"], before["probs"])
    assert torch.equal(copy.deepcopy(network)(x)["probs"], before["probs"])


def test_a_network_raises_what_predict_does(text, texts):
    model, guide = text(SGPAttention.partial(inducing=3))
    x, mask = texts()
    with pytest.raises(ValueError, match=r"without any token, rows \[2\]"):
        mean_network(model, guide)(x, mask.index_fill(0, torch.tensor(2), False))
    model.network.embedding.weight.data[3] = torch.nan
    with pytest.raises(NumericalError, match="SGPAttention 'network.blocks.0.attention'"):
        mean_network(model, guide)(x.fill_(3), mask)
