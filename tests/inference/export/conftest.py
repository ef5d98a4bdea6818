"""Models of images and texts with strong attention, and their networks."""

import pytest
import torch
from torch.testing import assert_close

from probattn import KEPSVGPAttention, guides
from probattn.draws import at_mean
from probattn.inference import mean_network, predict, predictor_network
from probattn.models import Supervised, TextTransformer, ViT
from probattn.models.embeddings import WordEmbedding
from probattn.models.likelihoods import Categorical

F64 = torch.float64


KEP = KEPSVGPAttention.partial(rank=2, multiple=2)


def _images(number=5):
    return torch.randn(number, 1, 4, 4, dtype=F64)


def _vit(layer=KEP, *, likelihood=None, depth=1, **options):
    """A model of images whose outputs depend strongly on attention, and its guide."""
    network = ViT(
        image_size=4,
        patch_size=2,
        channels=1,
        classes=3,
        dim=8,
        depth=depth,
        heads=2,
        mlp_dim=8,
        attention=layer,
        **options,
    )
    model = Supervised(network, likelihood or Categorical(), num_data=10).double()
    model.network.initialise_inducing(_images())
    return model, guides.for_model(model)


def _texts(rows=4, tokens=6, *, spelling=0):
    """Ids and a mask whose first row is full."""
    x = torch.randint(1, 9, (rows, tokens, *([1 + spelling] if spelling else [])))
    mask = torch.arange(tokens) < torch.randint(1, tokens + 1, (rows, 1))
    mask[0] = True
    return x, mask


def _text(layer=KEP, kind=TextTransformer, likelihood=None, embedding=None):
    network = kind(
        embedding or WordEmbedding(9, 8), max_length=12, classes=3, dim=8, depth=1, heads=2, mlp_dim=8, attention=layer
    )
    model = Supervised(network, likelihood or Categorical(), num_data=10).double()
    return model, guides.for_model(model)


def _network_of(model, guide, num_samples, *inputs):
    if num_samples is None:
        return mean_network(model, guide, *inputs)
    return predictor_network(model, guide, *inputs, num_samples=num_samples)


def _predicted(model, guide, data, num_samples):
    if num_samples is not None:
        return predict(model, guide, data, num_samples=num_samples)
    with at_mean():
        return predict(model, guide, data, num_samples=1)


def _same_as(prediction, found, **tolerance):
    assert found
    for name, value in found.items():
        assert_close(value, getattr(prediction, name), **tolerance)


def _seeded(call, *args):
    torch.manual_seed(7)
    return call(*args)


def _reloaded(path):
    return torch.export.load(path).module()


@pytest.fixture
def images():
    return _images


@pytest.fixture
def vit():
    return _vit


@pytest.fixture
def texts():
    return _texts


@pytest.fixture
def text():
    return _text


@pytest.fixture
def network_of():
    return _network_of


@pytest.fixture
def predicted():
    return _predicted


@pytest.fixture
def same_as():
    return _same_as


@pytest.fixture
def seeded():
    return _seeded


@pytest.fixture
def reloaded():
    return _reloaded
