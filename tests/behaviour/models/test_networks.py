"""Networks, models and likelihoods of this library: attention by name, draws, gradients, silent
mistakes."""

import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, SGPAttention, SoftmaxAttention, guides
from probattn.inference import ELBOLoss
from probattn.models import (
    Classifier,
    Supervised,
    TabularTransformer,
    TextTransformer,
    ViT,
    last,
    likelihoods,
)
from probattn.models.embeddings import SpelledEmbedding, WordEmbedding
from probattn.models.layer_factories import LAYERS

KEP = KEPSVGPAttention.partial(rank=2)
WIDTHS = {"dim": 8, "heads": 2, "mlp_dim": 16}
SIZES = WIDTHS | {"image_size": 4, "patch_size": 2, "channels": 3, "classes": 5}
IMAGES = torch.randn(2, 3, 4, 4)


def vit(attention=SoftmaxAttention, *, depth=2, **options):
    return ViT(**SIZES, depth=depth, attention=attention, **options)


def text(embedding=None, **options):
    return TextTransformer(
        embedding or WordEmbedding(20, 8), max_length=6, classes=3, depth=2, **WIDTHS, **options
    )


def kinds(network):
    return [type(block.attention) for block in network.blocks]


def test_names_classes_and_factories_mix_in_a_sequence():
    for name, record in LAYERS.items():
        layer = type(record.factory()(8, 2))
        first = SoftmaxAttention if record.last == 1 else layer
        assert kinds(vit(name)) == [first, layer]
    assert kinds(vit(["softmax", SGPAttention.partial(inducing=2)])) == [
        SoftmaxAttention,
        SGPAttention,
    ]
    for number in range(4):
        network = vit(last(number, KEP, of=3), depth=3)
        assert kinds(network) == [SoftmaxAttention] * (3 - number) + [KEPSVGPAttention] * number
    assert kinds(vit(last(1, "sgpa", of=2, rest=KEP))) == [KEPSVGPAttention, SGPAttention]
    assert kinds(vit(last(2, "kep-svgp", of=2))) == [KEPSVGPAttention] * 2
    assert vit(lambda dim, heads: nn.Identity())(IMAGES).shape == (2, 5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: vit("kepsvgp"), "kep-svgp"),
        (lambda: vit(KEPSVGPAttention(8, 2, rank=2)), "factory"),
        (lambda: vit(["softmax"]), "2 blocks"),
        (lambda: last(4, KEP, of=3), "of 3"),
        (lambda: ViT(**(SIZES | {"patch_size": 3}), depth=1), "patch_size"),
        (lambda: vit()(torch.randn(2, 3, 4, 5)), "4, 5"),
        (lambda: vit(dropout=float("nan")), "dropout"),
        (lambda: text()(torch.ones(1, 7, dtype=torch.long)), "max_length"),
        (
            lambda: text()(torch.ones(2, 2).long(), torch.tensor([[True, False], [False, False]])),
            "rows",
        ),
        (lambda: text(attention=KEPSVGPAttention.partial(rank=2, merge="concat")), "tokens"),
        (
            lambda: TabularTransformer([None], outputs=1, depth=1, **WIDTHS)(torch.zeros(4, 3)),
            "columns",
        ),
        (lambda: Classifier(vit(), num_data=0), "training set"),
        (lambda: likelihoods.Gaussian(0.0), "scale"),
        (lambda: likelihoods.StudentT(0.0), "df"),
        (lambda: likelihoods.StudentT(1.0, learn_df=True), "df"),
        (lambda: likelihoods.NegativeBinomial(0.0), "concentration"),
        (lambda: likelihoods.HeteroscedasticGaussian(0), "min_scale"),
        (lambda: likelihoods.HeteroscedasticGaussian()(torch.zeros(2, 3)), "even"),
        (lambda: likelihoods.Ordinal(1), "two classes"),
        (lambda: likelihoods.Ordinal(3)(torch.zeros(2, 3)), "one output"),
        (lambda: likelihoods.Categorical([1.0, 0.0]), "positive"),
        (lambda: Classifier(vit(), num_data=6, class_weights=[1.0, 2.0])(IMAGES), "class_weights"),
    ],
)
def test_what_would_be_silently_wrong_is_refused(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make()


def test_words_may_come_spelled_or_as_features():
    assert text(SpelledEmbedding(20, 9, 8))(torch.randint(0, 9, (2, 4, 6))).shape == (2, 3)
    assert text(nn.Linear(5, 8))(
        torch.randn(2, 4, 5), torch.ones(2, 4, dtype=torch.bool)
    ).shape == (2, 3)


class Own(nn.Module):
    """A user's plain module with one of our layers two levels down."""

    def __init__(self, outputs=2, *, pool=True):
        super().__init__()
        self.first, self.pool = nn.Linear(3, 4), pool
        self.body = nn.ModuleDict(
            {"attention": nn.Sequential(nn.LayerNorm(4), KEPSVGPAttention(4, 2, rank=2))}
        )
        self.head = nn.Linear(4, outputs)

    def forward(self, x, mask=None):
        x = self.body["attention"](self.first(x))
        return self.head(x.mean(-2) if self.pool else x)


X = torch.randn(6, 5, 3)


def test_an_own_module_becomes_a_model_whose_sites_are_named_by_their_paths():
    own = Own()
    names = list(own.state_dict())
    model = Classifier(own, num_data=6)
    assert list(dict(guides.latent_sites(model))) == ["network.body.attention.1.u"]
    assert list(own.state_dict()) == names
    own.head.bias.data.copy_(torch.tensor([0.0, 50.0]))
    assert torch.equal(model(X), torch.ones(6, dtype=torch.long)), (
        "labels are drawn where none are given"
    )


@pytest.mark.parametrize(
    ("likelihood", "outputs", "labels", "words"),
    [
        (likelihoods.Categorical(), 3, torch.tensor([0, 1, 2, 0, 3, 7]), r"rows \[4, 5\]"),
        (likelihoods.Categorical(), 3, torch.zeros(6, 1).long(), r"\(6, 1\)"),
        (likelihoods.Gaussian(), 1, torch.zeros(6), r"\(6, 1\)"),
    ],
)
def test_labels_out_of_range_and_labels_that_would_broadcast_are_refused(
    likelihood, outputs, labels, words
):
    model = Supervised(Own(outputs), likelihood, num_data=6)
    with pytest.raises(ValueError, match=words):
        ELBOLoss(model, guides.for_model(model))(X, labels)
