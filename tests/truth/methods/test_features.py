"""Features: what the head saw, in the order of the data, under the draws of predict."""

import pytest
import torch
from dropout_networks import images, vit
from fitted_methods import features_of
from torch import nn
from torch.testing import assert_close

from probattn import KEPSVGPAttention, guides
from probattn.inference import predict
from probattn.inference.prediction import replays as prediction
from probattn.models import Classifier, Supervised, replace_attention
from probattn.models.likelihoods import Bernoulli, Categorical, Gaussian, Ordinal, TokenCategorical

KEP_SVGP = KEPSVGPAttention.partial(rank=2, merge="concat", tokens=4)


def test_they_are_what_the_head_sees_and_one_draw_where_nothing_is_random():
    model, guide = vit(dropout=0.5)
    x = images(5)
    features = features_of(model, guide, x, num_samples=4)
    network = model.eval().network
    assert_close(features.values[0], network.norm(network.blocks(network.tokens(x)).mean(-2)))
    assert features.head is network.head
    assert_close(features.head(features.values)[0].softmax(-1), features.prediction.probs)


def test_draws_are_those_of_the_prediction_and_shared_by_batches_and_chunks(monkeypatch):
    monkeypatch.setattr(prediction, "CPU_CHUNK_SIZE", 9)
    model, guide = vit(KEP_SVGP)
    x = images(7)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(torch.randn_like(parameter))
    torch.manual_seed(3)
    features = features_of(model, guide, x.split([4, 2, 1]), num_samples=3)
    assert features.values.shape == (3, 7, 4)
    probs = features.head(features.values).softmax(-1)
    assert (probs[0] - probs[1]).abs().max() > 1e-3
    assert_close(features.prediction.probs, probs.mean(0))
    torch.manual_seed(3)
    assert torch.equal(
        features.prediction.probs, predict(model, guide, x.split([4, 2, 1]), num_samples=3).probs
    )
    same = features_of(model, guide, x[:1].expand(7, 1, 4, 4).split([4, 2, 1]), num_samples=3)
    assert_close(same.values, same.values[:, :1].expand(3, 7, 4))


def test_the_last_layer_is_found_wherever_it_stands():
    first = nn.Identity()  # so that the head sees a view of a larger tensor
    first.register_forward_hook(lambda _, inputs, output: output[:, 0])
    network, x = nn.Sequential(nn.Linear(3, 4), first, nn.Linear(4, 2)), torch.randn(4, 5, 3)
    features = features_of(Supervised(network, Categorical(), num_data=4), None, x)
    assert_close(features.values[0], network[0](x[:, 0]))
    model, x = Supervised(nn.Linear(3, 3, bias=False), Categorical(), num_data=4), torch.randn(2, 3)
    assert features_of(model, None, x).head is model.network
    layer = nn.Linear(3, 3)  # of a layer that runs twice the last run counts
    model = Supervised(nn.Sequential(layer, nn.Tanh(), layer), Categorical(), num_data=4)
    assert_close(features_of(model, None, x).values[0], layer(x).tanh())


class Twice(nn.Module):
    """The mean of two runs of the last layer, at nearly the same features."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        return (self.linear(x) + self.linear(x + 1e-6)) / 2


class Unused(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear, self.last = linear, nn.Linear(3, 4)

    def forward(self, x):
        return self.linear(x)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3])
def test_what_is_no_softmax_of_the_last_layer_is_an_error(size):
    """However small or large the logits are, where many functions look like the identity, and
    softmaxes are equal."""
    x, linear, pair = torch.randn(2, 3), nn.Linear(3, 4), nn.Linear(3, 2)
    positive = nn.Linear(3, 4)
    with torch.no_grad():
        for parameter in (*linear.parameters(), *pair.parameters()):
            parameter.mul_(size)
        positive.weight.zero_()
        positive.bias.fill_(size)
    for network, likelihood in (
        (nn.Sequential(linear, nn.LayerNorm(4)), Categorical()),
        (nn.Sequential(linear, nn.Tanh()), Categorical()),
        (nn.Sequential(linear, nn.Softshrink(0.01)), Categorical()),
        (nn.Sequential(positive, nn.ReLU()), Categorical()),
        (Twice(linear), Categorical()),
        (Unused(linear), Categorical()),
        (nn.Linear(3, 1), Ordinal(3)),
        (linear, Gaussian()),
        (linear, Bernoulli()),
        (pair, Bernoulli()),
    ):
        with pytest.raises(ValueError, match="classes|likelihood"):
            features_of(Supervised(network, likelihood, num_data=4), None, x)
    with pytest.raises(ValueError, match="classes"):
        features_of(Supervised(linear, TokenCategorical(), num_data=4), None, torch.randn(2, 5, 3))
    model, guide = Supervised(nn.Sequential(linear), Categorical(), num_data=4), nn.Module()
    guide.forward = lambda x, *_: model.network(x)  # the guide runs the network itself
    with pytest.raises(ValueError, match="once per batch"):
        features_of(model, guide, x)


def test_draws_that_were_folded_into_the_batch_are_unfolded_in_the_features():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
    network = nn.Sequential(encoder, nn.Flatten(-2), nn.Linear(32, 3))
    model = Classifier(
        replace_attention(network, attention=KEPSVGPAttention.partial(rank=2)), num_data=20
    )
    guide, x = guides.for_model(model), torch.randn(5, 4, 8)
    torch.manual_seed(1)
    features = features_of(model, guide, x, num_samples=3)
    torch.manual_seed(1)
    draws = predict(model, guide, x, num_samples=3, keep_draws=True).draws
    assert_close(features.head(features.values).softmax(-1), draws)
