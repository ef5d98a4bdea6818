"""The prior of the merge's and the output map's weights: closed form, gradient, and its weight in the ELBO."""

import pyro
import pyro.poutine as poutine
import pytest
import torch
from torch.testing import assert_close

from probattn import KEPSVGPAttention, guides, local_sites
from probattn.inference import Trace_ELBO, TraceMeanField_ELBO
from probattn.models import Classifier, ViT

WEIGHTS = {
    "add": lambda layer: [(layer.out.weight, 6)],
    "concat": lambda layer: [(layer.out.weight, 6), (layer.merge.weights, 8)],
    "concat_lowrank": lambda layer: [(layer.out.weight, 6), (layer.merge.a, 2), (layer.merge.b, 8)],
}


def make(merge, **options):
    torch.manual_seed(0)
    return KEPSVGPAttention(12, 3, rank=2, merge=merge, tokens=4, weight_prior=0.5, **options).double()


@pytest.mark.parametrize("plate", [False, True])
@pytest.mark.parametrize("merge", WEIGHTS)
def test_factor_is_the_density_of_all_weights_and_is_global(merge, plate):
    layer, x = make(merge), torch.randn(5, 4, 12).double()
    expected = sum(
        torch.distributions.Normal(0.0, 0.5 / inputs**0.5).log_prob(weight).sum()
        for weight, inputs in WEIGHTS[merge](layer)
    )
    with pyro.plate("examples", 5) if plate else local_sites(batch=5, num_data=50):
        site = poutine.trace(layer).get_trace(x).nodes["weight_prior"]
    assert_close(site["fn"].log_prob(site["value"]), expected)
    assert site["fn"].batch_shape == ()
    assert site["scale"] == 1.0
    gradient = torch.autograd.grad(expected, layer.out.weight)[0]
    assert_close(gradient, -layer.out.weight.detach() * 6 / 0.25)


def test_without_the_option_there_is_no_site_and_a_deviation_is_positive():
    layer = KEPSVGPAttention(12, 3, rank=2)
    assert "weight_prior" not in poutine.trace(layer).get_trace(torch.randn(5, 4, 12)).nodes
    with pytest.raises(ValueError, match="weight_prior > 0"):
        KEPSVGPAttention(12, 3, rank=2, weight_prior=0.0)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_it_counts_once_for_the_data_set_whatever_the_batch_and_its_size(elbo):
    """Per example, the loss divided by N, its weight is 1/N, as that of the KL."""

    def terms(batch, num_data):
        torch.manual_seed(0)
        network = ViT(
            image_size=4, channels=1, patch_size=2, classes=3, dim=8, depth=1, heads=2, mlp_dim=8,
            attention=KEPSVGPAttention.partial(rank=2, weight_prior=1.0),
        )  # fmt: skip
        model = Classifier(network, num_data=num_data)
        guide, loss = guides.for_model(model), elbo()
        loss(model, guide)(torch.randn(batch, 1, 4, 4), torch.zeros(batch, dtype=torch.long)).backward()
        return loss.terms(), network.blocks[0].attention

    (name,) = (name for name in terms(2, 10)[0] if "weight_prior" in name)
    assert name == "penalty/network.blocks.0.attention.weight_prior"
    values = {terms(batch, num_data)[0][name] for batch, num_data in ((2, 10), (5, 10), (5, 1000))}
    assert len(values) == 1
    found, layer = terms(2, 10)
    expected = torch.distributions.Normal(0.0, 0.5).log_prob(layer.out.weight).sum()
    assert found[name] == pytest.approx(-expected.item())
