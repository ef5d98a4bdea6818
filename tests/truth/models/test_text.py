"""Transformers of texts: padding, splitting and reordering never matter to a real token, whatever
the attention."""

import torch
from torch.testing import assert_close

from probattn.models import TextTransformer
from probattn.models.embeddings import WordEmbedding

SHAPE = {"max_length": 12, "classes": 3, "dim": 8, "heads": 2, "mlp_dim": 16, "depth": 2}


def text(kind=TextTransformer, **options):
    torch.manual_seed(0)
    return kind(WordEmbedding(20, 8), **(SHAPE | options)).double()


def test_without_a_mask_all_tokens_are_real_and_their_order_matters():
    network, x = text().eval(), torch.tensor([[3, 4, 5], [6, 6, 7]])
    assert_close(network(x), network(x, torch.ones(2, 3, dtype=torch.bool)))
    assert not torch.allclose(network(x), network(x.flip(1)))
