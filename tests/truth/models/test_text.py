"""Transformers of texts: padding, splitting and reordering never matter to a real token, whatever
the attention."""

import pytest
import torch
from attention_layers import LAYERS
from torch.testing import assert_close

from probattn import guides
from probattn.draws import at_mean
from probattn.inference import predict
from probattn.models import Supervised, TextTagger, TextTransformer
from probattn.models.embeddings import WordEmbedding
from probattn.models.likelihoods import Categorical, TokenCategorical

SHAPE = {"max_length": 12, "classes": 3, "dim": 8, "heads": 2, "mlp_dim": 16, "depth": 2}


def text(kind=TextTransformer, **options):
    torch.manual_seed(0)
    return kind(WordEmbedding(20, 8), **(SHAPE | options)).double()


def batch(lengths, *, width=None, fill=0):
    """Random ids of those lengths, padded with a number that must not matter."""
    generator = torch.Generator().manual_seed(1)
    width = width or max(lengths)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids = torch.full((len(lengths), width), fill)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(1, 20, (length,), generator=generator)
    return ids, mask


def mean_prediction(network, x, mask):
    """Global sites at the guide's means, local ones at those of their posteriors; of taggers for
    each real token."""
    is_tagger = isinstance(network, TextTagger)
    model = Supervised(network, TokenCategorical() if is_tagger else Categorical(), num_data=10)
    torch.manual_seed(3)  # of the guide's initial means
    guide = guides.for_model(model)
    labels = torch.zeros(x.shape[:2] if is_tagger else len(x)).long()
    with at_mean():
        probs = predict(model, guide, [(x, labels, mask)], num_samples=1).probs
    return probs[mask] if is_tagger else probs


@pytest.mark.parametrize(
    "layer", ["softmax", "kernel", "kep-svgp", "sgpa", "sgpa-standard", "cgp", "sparse-cgp"]
)
@pytest.mark.parametrize("kind", [TextTransformer, TextTagger])
def test_padding_and_the_other_texts_of_a_batch_change_nothing(layer, kind):
    lengths = [4, 1, 9, 2]
    x, mask = batch(lengths)
    network = text(kind, attention=LAYERS[layer])
    expected = mean_prediction(network, x, mask)
    assert_close(
        mean_prediction(network, *batch(lengths, width=11, fill=7)), expected, rtol=0, atol=1e-9
    )
    alone = [
        mean_prediction(network, x[[row], :n], mask[[row], :n]) for row, n in enumerate(lengths)
    ]
    assert_close(torch.cat(alone), expected, rtol=0, atol=1e-9)


def test_without_a_mask_all_tokens_are_real_and_their_order_matters():
    network, x = text().eval(), torch.tensor([[3, 4, 5], [6, 6, 7]])
    assert_close(network(x), network(x, torch.ones(2, 3, dtype=torch.bool)))
    assert not torch.allclose(network(x), network(x.flip(1)))
