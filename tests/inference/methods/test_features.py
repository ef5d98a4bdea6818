"""Features: what the head saw, in the order of the data, under the draws of predict."""

import pyro.poutine as poutine
import pytest
import torch
from fitted_methods import features_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.draws import at_mean
from probattn.inference import predict
from probattn.inference.prediction import predict as prediction
from probattn.models import Classifier, Supervised, ViT, last, replace_attention
from probattn.models.likelihoods import Bernoulli, Categorical, Gaussian, Ordinal, TokenCategorical

SHAPE = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "dim": 8, "depth": 2, "heads": 2, "mlp_dim": 8}
KEP_SVGP = KEPSVGPAttention.partial(rank=2, merge="concat", tokens=4)


def build(attention=SoftmaxAttention, **options):
    model = Classifier(ViT(**SHAPE, attention=attention, **options), num_data=9).double()
    return model, guides.for_model(model)


def images(number):
    return torch.randn(number, 1, 4, 4, dtype=torch.float64)


def hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_they_are_what_the_head_sees_and_one_draw_where_nothing_is_random():
    model, guide = build(dropout=0.5)
    x = images(5)
    found = features_of(model, guide, x, num_samples=4)
    model.eval()
    network = model.network
    expected = network.norm(network.blocks(network.tokens(x)).mean(-2))
    torch.testing.assert_close(found.values, expected.unsqueeze(0))
    assert found.head is network.head
    torch.testing.assert_close(found.head(found.values)[0].softmax(-1), found.prediction.probs)


def test_draws_are_those_of_the_prediction_and_shared_by_batches_and_pieces(monkeypatch):
    monkeypatch.setattr(prediction, "CPU_CHUNK_SIZE", 9)
    model, guide = build(last(1, KEP_SVGP, of=2))
    x = images(7)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(torch.randn_like(parameter))
    found = features_of(model, guide, x.split([4, 2, 1]), num_samples=3)
    assert found.values.shape == (3, 7, 8)
    probs = found.head(found.values).softmax(-1)
    assert (probs[0] - probs[1]).abs().max() > 1e-3
    torch.testing.assert_close(found.prediction.probs, probs.mean(0))
    torch.testing.assert_close(
        found.prediction.expected_entropy, torch.special.entr(probs).sum(-1).mean(0), rtol=1e-9, atol=1e-9
    )
    same = features_of(model, guide, x[:1].expand(7, 1, 4, 4).split([4, 2, 1]), num_samples=3)
    torch.testing.assert_close(same.values, same.values[:, :1].expand(3, 7, 8))


def test_one_draw_of_a_stochastic_network_has_a_dimension_of_its_own():
    model, guide = build(KEP_SVGP)
    x = images(5)
    with at_mean():
        found = features_of(model, guide, x)
    means = {name: guide.get_submodule(name).loc for name, _ in guides.latent_sites(model)}
    model.eval()
    inputs = []
    model.network.head.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    poutine.condition(model.network, data=means)(x)
    assert found.values.shape == (1, 5, 8)
    torch.testing.assert_close(found.values[0], inputs[0].reshape(5, 8))


def test_labels_and_features_keep_together_when_a_loader_shuffles():
    model, guide = build()
    x, y = images(9), torch.arange(9)
    found = features_of(model, guide, DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True))
    labels = found.prediction.labels
    assert sorted(labels.tolist()) == y.tolist()
    assert labels.tolist() != y.tolist()
    torch.testing.assert_close(found.values, features_of(model, guide, x[labels]).values)


def test_neither_hooks_nor_modes_nor_weights_stay_changed():
    model, guide = build(KEP_SVGP, dropout=0.1)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    features_of(model, guide, images(3), num_samples=2)
    assert hooks(model) == 0
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="NaN or Inf in the inputs"):
        features_of(model, guide, torch.full((3, 1, 4, 4), torch.nan, dtype=torch.float64))
    assert hooks(model) == 0


class First(nn.Module):
    """Its head sees a view of a larger tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.embed(x)[:, 0])


def test_a_head_may_see_a_part_of_a_tensor():
    model, x = Supervised(First(), Categorical(), num_data=4), torch.randn(4, 5, 3)
    torch.testing.assert_close(features_of(model, None, x).values[0], model.network.embed(x[:, 0]))


class Meddling(nn.Module):
    """A guide that runs the network itself."""

    def __init__(self, network) -> None:
        super().__init__()
        self.run = lambda x: network(x)

    def forward(self, x, y=None, mask=None):
        self.run(x)


def test_a_guide_that_runs_the_network_is_refused_rather_than_mistaken_for_the_model():
    model = Supervised(nn.Sequential(nn.Linear(3, 2)), Categorical(), num_data=4)
    with pytest.raises(ValueError, match="run once per batch"):
        features_of(model, Meddling(model.network), torch.randn(4, 3))


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(3, 3)),
        nn.Linear(3, 3, bias=False),
    ],
)
def test_the_last_layer_is_found_wherever_it_stands(network):
    model = Supervised(network, Categorical(), num_data=4)
    expected = network if isinstance(network, nn.Linear) else network[-1]
    assert features_of(model, None, torch.randn(2, 3)).head is expected


def test_of_a_layer_that_runs_twice_the_last_run_counts():
    layer = nn.Linear(3, 3)
    model = Supervised(nn.Sequential(layer, nn.Tanh(), layer), Categorical(), num_data=4)
    x = torch.randn(2, 3)
    torch.testing.assert_close(features_of(model, None, x).values[0], layer(x).tanh())


@pytest.mark.parametrize("end", [nn.LayerNorm(4), nn.Tanh()])
def test_a_network_that_ends_in_something_else_is_refused(end):
    model = Supervised(nn.Sequential(nn.Linear(3, 4), end), Categorical(), num_data=4)
    with pytest.raises(ValueError, match="must end in its last"):
        features_of(model, None, torch.randn(2, 3))
    assert hooks(model) == 0


def test_an_ordinal_likelihood_is_refused():
    """Its probabilities are not the softmax of the last layer's output."""
    model = Supervised(nn.Linear(3, 1), Ordinal(3), num_data=4)
    with pytest.raises(ValueError, match="a softmax over classes"):
        features_of(model, None, torch.randn(2, 3))


def test_draws_that_were_folded_into_the_batch_are_unfolded_in_the_features():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.encoder(x).mean(1))

    model = Classifier(replace_attention(Pooled(), attention=KEPSVGPAttention.partial(rank=2)), num_data=20)
    guide = guides.for_model(model)
    x = torch.randn(5, 4, 8)
    torch.manual_seed(1)
    found = features_of(model, guide, x, num_samples=3)
    assert found.values.shape == (3, 5, 8)
    assert found.head is model.network.wrapped.head
    torch.manual_seed(1)
    drawn = predict(model, guide, x, num_samples=3, keep_draws=True).draws
    torch.testing.assert_close(found.head(found.values).softmax(-1), drawn)


@pytest.mark.parametrize("likelihood", [Gaussian(), Bernoulli(), TokenCategorical()])
def test_other_likelihoods_are_refused(likelihood):
    model = Supervised(nn.Linear(3, 3), likelihood, num_data=4)
    x = torch.randn(2, 5, 3) if isinstance(likelihood, TokenCategorical) else torch.randn(2, 3)
    with pytest.raises(ValueError, match="classes ≥ 2"):
        features_of(model, None, x)


def test_predict_after_the_same_seed_gives_the_same_prediction():
    model, guide = build(KEP_SVGP)
    x = images(5)
    torch.manual_seed(3)
    found = features_of(model, guide, x, num_samples=4)
    torch.manual_seed(3)
    assert torch.equal(found.prediction.probs, predict(model, guide, x, num_samples=4).probs)
