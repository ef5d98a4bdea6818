"""Layers, and models of images and texts with strong attention, for tests of export."""

import attention_layers
import torch
from small_vit import small_vit
from torch.testing import assert_close

from probattn import CGPAttention, KEPSVGPAttention, SparseCGPAttention, guides
from probattn.draws import at_mean
from probattn.inference import mean_network, predict, predictor_network
from probattn.models import Supervised, TextTransformer
from probattn.models.embeddings import WordEmbedding
from probattn.models.likelihoods import Categorical

KEP = KEPSVGPAttention.partial(rank=2, multiple=2)


STRONG = {
    "kep-svgp": KEP,
    "kep-svgp-mean": KEPSVGPAttention.partial(rank=2, multiple=2, mean="softmax", amplitude=1.0),
    "cgp": CGPAttention.partial(noise=0.3),
    "sparse-cgp": SparseCGPAttention.partial(inducing=2, noise=0.3),
}
LAYERS = {
    name: STRONG.get(name, attention_layers.LAYERS[name])
    for name in (
        *(
            "softmax",
            "kernel",
            "kep-svgp",
            "kep-svgp-concat",
            "kep-svgp-svd",
            "kep-svgp-mean",
            "kep-svgp-residual",
        ),
        *("sgpa", "sgpa-joint", "sgpa-standard", "cgp", "sparse-cgp", "anchored", "anchored-draw"),
        *(
            "anchored-dual",
            "rff-gpa",
            "rff-gpa-dual",
            "rff-gpa-sampled",
            "rff-cgp",
            "rff-cgp-sampled",
        ),
    )
}


def images(number=5):
    return torch.randn(number, 1, 4, 4, dtype=torch.float64)


def vit(layer=KEP, *, likelihood=None, depth=1, **options):
    """A model of images whose outputs depend strongly on attention, and its guide."""
    network = small_vit(layer, depth=depth, **options)
    model = Supervised(network, likelihood or Categorical(), num_data=10).double()
    model.network.initialise_inducing(images())
    return model, guides.for_model(model)


def texts(rows=4, tokens=6, *, spelling=0):
    """Ids and a mask whose first row is full."""
    x = torch.randint(1, 9, (rows, tokens, *([1 + spelling] if spelling else [])))
    mask = torch.arange(tokens) < torch.randint(1, tokens + 1, (rows, 1))
    mask[0] = True
    return x, mask


def text(layer=KEP, kind=TextTransformer, likelihood=None, embedding=None):
    sizes = {"max_length": 12, "classes": 3, "dim": 8, "depth": 1, "heads": 2, "mlp_dim": 8}
    network = kind(embedding or WordEmbedding(9, 8), attention=layer, **sizes)
    model = Supervised(network, likelihood or Categorical(), num_data=10).double()
    return model, guides.for_model(model)


def network_of(model, guide, num_samples, *inputs):
    if num_samples is None:
        return mean_network(model, guide, *inputs)
    return predictor_network(model, guide, *inputs, num_samples=num_samples)


def predicted(model, guide, data, num_samples):
    if num_samples is not None:
        return predict(model, guide, data, num_samples=num_samples)
    with at_mean():
        return predict(model, guide, data, num_samples=1)


def assert_predicts(outputs, prediction, **tolerance):
    assert outputs
    for name, value in outputs.items():
        assert_close(value, getattr(prediction, name), **tolerance)


def seeded(call, *args):
    torch.manual_seed(7)
    return call(*args)
