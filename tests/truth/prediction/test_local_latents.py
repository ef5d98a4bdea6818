"""Local latent variables in prediction: drawn per example, from posteriors or priors, or at their
means."""

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from float64 import randn64
from known_predictives import build, predicted_and_outputs
from torch import nn
from torch.testing import assert_close

from probattn import SGPAttention, local_site, local_sites
from probattn.draws import at_mean
from probattn.inference import predict
from probattn.site_info import info_of


class Amortised(nn.Module):
    """A latent of each example whose prior is N(−3, 1/4) and whose posterior is N(x, 1/100); one
    that all share."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x, y=None, mask=None):
        shared = pyro.sample("shared", dist.Normal(0.0, 1.0))
        with local_sites(batch=len(x), num_data=8):
            infer = local_site(dist.Normal(x, 0.1))
            z = pyro.sample("z", dist.Normal(torch.full((len(x),), -3.0), 0.5), infer=infer)
            return pyro.sample("y", dist.Normal(z + 100 * shared, 0.2), obs=y, infer=local_site())


class Shared(nn.Module):
    """Knows the shared latent only."""

    def forward(self, x, y=None, mask=None):
        pyro.sample("shared", dist.Normal(1.0, 1e-3))


class Prior(Amortised):
    def forward(self, x, y=None, mask=None):
        with poutine.condition(data={"shared": torch.tensor(1.0)}):
            return super().forward(x, y, mask)


def test_local_sites_come_from_their_posteriors_with_a_guide_and_from_their_priors_without():
    x, number = torch.arange(8.0), 500
    result = predict(Amortised(), Shared(), x.split(3), num_samples=number)
    assert_close(result.mean, 100 + x, rtol=0, atol=0.03)
    assert_close(result.variance, torch.full((8,), 0.05 + 0.1**2), rtol=0.1, atol=0.01)
    result = predict(Prior(), None, x.split(3), num_samples=number)
    assert_close(result.mean, torch.full((8,), 97.0), rtol=0, atol=0.11)
    assert_close(result.variance, torch.full((8,), 0.25 + 0.2**2), rtol=0.3, atol=0)


@pytest.mark.parametrize(("inducing", "how"), [(2, "marginal"), (2, "joint"), (None, "joint")])
def test_a_prediction_at_the_mean_is_the_network_at_the_means_of_its_sites(inducing, how):
    model, guide = build(attention=SGPAttention.partial(inducing=inducing, draws=how))
    x = randn64(3, 5, 3)
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [True] * 5])
    x = x * mask[..., None]  # the network averages over padding, where it sees zeros
    with at_mean():
        result = predict(
            model, guide, [(x, torch.tensor([0, 1, 2]), mask)], num_samples=2, keep_draws=True
        )
    model.eval()
    h = model.network.embed(x)
    for i, layer in enumerate(model.network.layers):
        data = {}
        if inducing is not None:
            data[f"network.layers.{i}.u"] = guide.get_submodule(f"network.layers.{i}.u").loc
        name = f"network.layers.{i}.g"
        node = poutine.trace(poutine.condition(layer, data=data)).get_trace(h, mask).nodes[name]
        data[name] = info_of(node).posterior.mean
        h = h + poutine.condition(layer, data=data)(h, mask)
    expected = model.network.head(h.mean(-2)).softmax(-1)
    assert_close(result.draws, expected.expand(2, 3, 3))


def test_batches_share_global_draws_and_not_local_ones():
    model, guide = build(attention=SGPAttention.partial(inducing=2))
    x = randn64(1, 5, 3).expand(6, 5, 3)
    result = predict(model, guide, x.split(2), num_samples=4, keep_draws=True)
    assert len(result.draws[0, :, 0].unique()) == 6
    with torch.no_grad():
        for (
            layer
        ) in model.network.layers:  # without local noise, of which each draw of u leaves one output
            layer.query_value.weight.mul_(1e-9)
            layer.kernel.log_variance.fill_(-60)
    result, logits = predicted_and_outputs(
        model, guide, [(part,) for part in x.split(2)], num_samples=4
    )
    assert_close(result.draws, result.draws[:, :1].expand(4, 6, 3), rtol=0, atol=1e-6)
    assert_close(result.draws, logits.softmax(-1), rtol=0, atol=1e-6)
