"""Networks and likelihoods of users: attention by name, own modules, class weights, noise from labels."""

import pytest
import torch
from elbos import Trace_ELBO
from torch import nn

from probattn import KEPSVGPAttention, SGPAttention, SoftmaxAttention, guides
from probattn.models import Classifier, Supervised, ViT, last, likelihoods, replace_attention
from probattn.models.layer_factories import LAYERS


def vit(attention, depth=2):
    return ViT(
        image_size=4, patch_size=2, channels=1, classes=3, dim=4, depth=depth, heads=2, mlp_dim=4, attention=attention
    )


@pytest.mark.parametrize("name", LAYERS)
def test_a_name_builds_the_layer_in_every_block(name):
    built = LAYERS[name](4, 2)
    assert [type(block.attention) for block in vit(name).blocks] == [type(built)] * 2
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 4, batch_first=True), 1)
    converted = replace_attention(encoder, attention=name)
    assert any(isinstance(module, type(built)) for module in converted.modules())


def test_names_classes_and_factories_mix_in_a_sequence():
    blocks = vit(["softmax", SGPAttention.partial(inducing=2)]).blocks
    assert [type(block.attention) for block in blocks] == [SoftmaxAttention, SGPAttention]
    assert [type(block.attention) for block in vit(last(1, "sgpa", of=2)).blocks] == [SoftmaxAttention, SGPAttention]


@pytest.mark.parametrize(
    ("attention", "words"),
    [
        ("kepsvgp", "'kepsvgp' is unknown; choose one of softmax, kep-svgp"),
        (KEPSVGPAttention, "rank"),
        (KEPSVGPAttention(4, 2, rank=2), r"a factory \(dim, heads\) -> layer"),
        (3, "not (a )?callable"),
        (["softmax"], "1 attention factories for 2 blocks"),
    ],
)
def test_what_is_no_factory_is_refused_with_what_to_pass(attention, words):
    with pytest.raises((ValueError, TypeError), match=words):
        vit(attention)
    if not isinstance(attention, list):
        with pytest.raises((ValueError, TypeError), match=words):
            replace_attention(nn.TransformerEncoderLayer(4, 2, 4), attention=attention)


class Own(nn.Module):
    """A plain module with one of our layers two levels down."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.body = nn.ModuleDict({"attention": nn.Sequential(nn.LayerNorm(4), KEPSVGPAttention(4, 2, rank=2))})
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body["attention"](self.first(x)).mean(-2))


def test_an_own_module_becomes_a_model_whose_sites_are_named_by_their_paths():
    own = Own()
    names = list(own.state_dict())
    model = Classifier(own, num_data=6)
    assert [site for site, _ in guides.latent_sites(model)] == ["network.body.attention.1.u"]
    assert isinstance(own, Own)
    assert list(own.state_dict()) == names
    assert [name for name, _ in own.named_children()] == ["first", "body", "head"]


X = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("likelihood", "outputs", "labels", "words"),
    [
        (likelihoods.Categorical(), 3, torch.tensor([0, 1, 2, 0, 3, 7]), r"got 0..7 \(rows \[4, 5\]"),
        (likelihoods.Bernoulli(), 1, torch.tensor([0, 1, 0, 2, 0, 1])[:, None], "site 'y'"),
        (likelihoods.Poisson(), 1, torch.tensor([0.0, 1, 2, 3, 4, -1])[:, None], "site 'y'"),
    ],
)  # fmt: skip
def test_labels_out_of_range_are_refused(likelihood, outputs, labels, words):
    model = Supervised(nn.Sequential(nn.Linear(3, outputs), Mean()), likelihood, num_data=6)
    with pytest.raises(ValueError, match=words):
        Trace_ELBO()(model, guides.for_model(model))(X, labels)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(-2)


def test_labels_out_of_range_at_padding_are_ignored_and_at_real_tokens_named():
    model = Supervised(Tokens(), likelihoods.TokenCategorical(), num_data=6)
    mask = torch.arange(5) < 3
    labels = torch.zeros(6, 5).long().where(mask, -100)
    model(X, labels, mask.expand(6, 5))
    labels[2, 1] = 9
    with pytest.raises(ValueError, match=r"0..2 for 3 classes, got 0..9 \(rows \[2\]"):
        model(X, labels, mask.expand(6, 5))


class Tokens(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)

    def forward(self, x, mask):
        return super().forward(x)


def test_class_weights_multiply_the_log_likelihood_of_each_label_and_no_probability():
    logits, y = torch.randn(2, 4, 3, dtype=torch.float64), torch.tensor([0, 2, 1, 2])
    weights = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
    likelihood = likelihoods.Categorical(weights).double()(logits)
    expected = logits.log_softmax(-1)[:, torch.arange(4), y] * weights[y]
    torch.testing.assert_close(likelihood.log_prob(y), expected)
    torch.testing.assert_close(likelihood.expand((5, 2, 4)).log_prob(y), expected.expand(5, 2, 4))
    torch.testing.assert_close(likelihood.probs, logits.softmax(-1))
    weighted = nn.functional.cross_entropy(logits[0], y, weight=weights, reduction="sum")
    torch.testing.assert_close(-likelihood.log_prob(y)[0].sum(), weighted)


def test_class_weights_are_checked():
    with pytest.raises(ValueError, match="positive numbers, one per class"):
        likelihoods.Categorical([1.0, 0.0])
    with pytest.raises(ValueError, match="2 class_weights for outputs of 3 classes"):
        Classifier(nn.Sequential(nn.Linear(3, 3), Mean()), num_data=6, class_weights=[1.0, 2.0])(X)


@pytest.mark.parametrize("kind", [likelihoods.Gaussian, likelihoods.StudentT])
def test_noise_gets_the_deviation_of_the_labels_unless_given_or_trained(kind):
    labels = 100 * torch.randn(50, 2) + 7
    expected = labels.var(0, correction=0).mean().sqrt()
    noise = kind()
    noise.initialise(labels)
    torch.testing.assert_close(noise.log_scale.exp(), expected)
    noise.initialise(10 * labels)  # already has a value
    torch.testing.assert_close(noise.log_scale.exp(), expected)
    for given in (kind(scale=1.0), kind(scale=[0.5, 2.0])):
        before = given.log_scale.clone()
        given.initialise(labels)
        assert torch.equal(given.log_scale, before)
    constant = kind()
    constant.initialise(torch.ones(4, 1))
    assert constant.log_scale == 0
