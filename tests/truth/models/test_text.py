"""Transformers of texts: what no mask means, and that the order of words counts."""

import torch
from torch.testing import assert_close

from probattn.models import TextTransformer
from probattn.models.embeddings import WordEmbedding


def test_without_a_mask_all_tokens_are_real_and_their_order_matters():
    sizes = {"max_length": 12, "classes": 3, "dim": 8, "heads": 2, "mlp_dim": 16, "depth": 2}
    network = TextTransformer(WordEmbedding(20, 8), **sizes).eval()
    x = torch.tensor([[3, 4, 5], [6, 6, 7]])
    assert_close(network(x), network(x, torch.ones(2, 3, dtype=torch.bool)))
    assert not torch.allclose(network(x), network(x.flip(1)))
