"""Networks with stored samples against predict with the same draws, without Pyro, in several
threads at once."""

import copy

import pyro
import pyro.distributions as dist
import pytest
import torch
from elbos import TraceMeanField_ELBO
from export_cases import (
    LAYERS,
    assert_predicts,
    images,
    network_of,
    predicted,
    seeded,
    text,
    texts,
    vit,
)
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn

from probattn import (
    KEPSVGPAttention,
    draws,
    guides,
    local_posteriors,
    local_site,
    priors,
)
from probattn.inference import mean_network, predictor_network
from probattn.inference.objective import guide_checks
from probattn.models import Supervised, TextTagger
from probattn.models.likelihoods import Bernoulli, Categorical, Gaussian, TokenCategorical

spread = pytest.mark.parametrize("num_samples", [None, 3])
HORSESHOE = KEPSVGPAttention.partial(rank=2, multiple=2, prior=priors.Horseshoe())


@spread
@pytest.mark.parametrize("layer", [*LAYERS.values(), HORSESHOE], ids=[*LAYERS, "horseshoe"])
def test_a_network_predicts_what_predict_does_with_the_same_draws(no_pyro, layer, num_samples):
    model, guide = vit(layer, depth=2)
    x = images()
    prediction = seeded(predicted, model, guide, x, num_samples)
    network = seeded(network_of, model, guide, num_samples)
    no_pyro()
    outputs = network(x)
    assert_predicts(outputs, prediction, rtol=0, atol=1e-12)
    more = {"entropy", "expected_entropy", "mutual_information"} if num_samples else set()
    assert set(outputs) == {"probs", "energy"} | more


@spread
@pytest.mark.parametrize("likelihood", [Gaussian, Bernoulli, TokenCategorical])
def test_numbers_have_mean_and_variance_and_classes_of_tokens_are_0_at_padding(
    likelihood, num_samples
):
    if likelihood is TokenCategorical:
        (model, guide), (x, mask) = text(kind=TextTagger, likelihood=likelihood()), texts()
        data, arguments = [(x, None, mask)], (x, mask)
    else:
        (model, guide), data = vit(likelihood=likelihood()), images()
        arguments = (data,)
    prediction = seeded(predicted, model, guide, data, num_samples)
    outputs = seeded(lambda: network_of(model, guide, num_samples)(*arguments))
    assert_predicts(outputs, prediction)
    if likelihood is TokenCategorical:
        assert (outputs["probs"].sum(-1)[mask] > 0.99).all()
        assert (outputs["probs"][~mask] == 0).all()
    else:
        assert set(outputs) == {"mean", "variance"}


@pytest.mark.parametrize(
    ("family", "num_samples"),
    [("lowrank", 3), (AutoNormal, None), (AutoMultivariateNormal, 3), (None, 3)],
)
def test_any_guide(family, num_samples):
    model, _ = vit()
    x = images()
    if isinstance(family, type):
        guide = family(local_posteriors(model))
        with pytest.raises(ValueError, match="materialise"):
            mean_network(model, guide)
        guide_checks.materialise(guide, (x, torch.zeros(len(x))))
    else:
        guide = None if family is None else guides.for_model(model, family)
    prediction = seeded(predicted, model, guide, x, num_samples)
    assert_predicts(seeded(lambda: network_of(model, guide, num_samples)(x)), prediction)


class Own(nn.Module):
    """A guide of a user that asks for the inputs, and draws a site of each example where
    ``local``."""

    def __init__(self, site, prior, local=False):
        super().__init__()
        self.site, self.prior, self.local = site, prior, local

    def forward(self, x, y=None, mask=None):
        pyro.sample(self.site, self.prior, infer=local_site() if self.local else {})


def test_a_guide_that_asks_for_inputs_gets_them_and_what_a_network_cannot_fix_is_refused():
    model, guide = vit()
    x, (site, prior) = images(), next(guides.latent_sites(model))
    own = Own(site, prior)
    assert_predicts(mean_network(model, own, x)(x), predicted(model, own, x, None))
    with pytest.raises(AttributeError, match="value_u"):
        mean_network(model, Own(site, prior, local=True), x)(x)
    with pytest.raises(ValueError, match="another model"):
        mean_network(copy.deepcopy(model), guide)
    network = PyroModule[nn.Linear](4, 3)
    network.bias = PyroSample(dist.Normal(torch.zeros(3), 1.0).to_event(1))
    model = Supervised(network, Categorical(), num_data=5)
    for refused in (None, guides.for_model(model)):
        with pytest.raises(ValueError, match="belongs to no layer"):
            mean_network(model, refused)


@spread
def test_a_network_is_a_copy_that_stays_as_it_is(num_samples):
    model, guide = vit(dropout=0.5)
    x = images()
    network = network_of(model, guide, num_samples).train()
    assert model.training
    assert all(parameter.requires_grad for parameter in [*model.parameters(), *guide.parameters()])
    assert not any(parameter.requires_grad for parameter in network.parameters())
    before = network(x)["probs"]
    with torch.no_grad():
        for parameter in [*model.parameters(), *guide.parameters()]:
            parameter += 1
    for same in (network, nn.Sequential(network).train(), copy.deepcopy(network)):
        assert torch.equal(same(x)["probs"], before)


@pytest.mark.parametrize("likelihood", [Categorical, Gaussian, Bernoulli])
def test_a_network_refuses_outputs_that_are_none_also_while_another_thread_trains(likelihood):
    """Which switches the checks of Pyro and PyTorch off in the whole process."""
    model, guide = vit(likelihood=likelihood())
    network = predictor_network(model, guide, num_samples=3)
    with pyro.validation_enabled(False), pytest.raises(ValueError, match="outputs"):
        network(images() * torch.nan)


def test_handlers_and_the_parameter_store_do_not_reach_a_network():
    model, guide = vit()
    x, y = images(), torch.zeros(5, dtype=torch.long)
    network = predictor_network(model, guide, num_samples=3)
    expected = network(x)["probs"]
    with draws("example"):
        assert TraceMeanField_ELBO()(model, guide)(x, y).isfinite()
        with pyro.poutine.trace() as traced:
            assert torch.equal(network(x)["probs"], expected)
    assert not traced.trace.nodes
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), pyro.infer.Trace_ELBO())
    svi.step(
        x, y
    )  # puts the model's parameters into Pyro's store by the names that the network's have
    with pyro.poutine.trace(param_only=True):
        assert torch.equal(network(x)["probs"], expected)
