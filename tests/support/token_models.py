"""Models of a label per token, for tests of their predictions."""

import pytest
import torch
from torch import nn

from probattn import KEPSVGPAttention, SoftmaxAttention, guides
from probattn.inference import predict
from probattn.models import Supervised
from probattn.models.likelihoods import TokenCategorical

WORDS, TAGS = 6, 3


KEP, SOFTMAX = KEPSVGPAttention.partial(rank=4, merge="add"), SoftmaxAttention


LAYERS = pytest.mark.parametrize("layer", [KEP, SOFTMAX], ids=["kep-svgp", "softmax"])


FIELDS = ("probs", "expected_entropy", "energy", "entropy", "mutual_information")


class Tagger(nn.Module):
    """Embeds words and their places, lets them attend once, and tags each."""

    def __init__(self, layer, width: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(16, width)
        self.attention = layer(width, 4)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, TAGS)

    def forward(self, x, mask=None):
        x = self.words(x) + self.places(torch.arange(x.shape[-1]))
        return self.head(self.norm(x + self.attention(x, mask)))


def build(layer, num_data=10):
    torch.manual_seed(0)
    model = Supervised(Tagger(layer), TokenCategorical(), num_data=num_data).double()
    guide = guides.for_model(model)
    with torch.no_grad():  # far from the start, where draws and neighbours hardly matter
        for parameter in model.network.attention.parameters():
            parameter.add_(torch.randn_like(parameter) / 2)
    return model, guide


def sentences(lengths, seed=0):
    """Words and tags of each sentence: the tag is 0 where the next word is the same, else 1 or 2 by
    the word."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for length in lengths:
        words = torch.randint(WORDS, (length,), generator=generator)
        follows = torch.rand(length, generator=generator) < 0.3
        for place in range(length - 1):
            if follows[place]:
                words[place + 1] = words[place]
        same = torch.cat([words[1:] == words[:-1], torch.tensor([False])])
        found.append((words, torch.where(same, 0, 1 + words % 2)))
    return found


def batch(pairs, *, more=0, word=0, label=0):
    """A batch ``(x, y, mask)`` of sequences with their labels, padded to the longest and that many
    tokens more."""
    lengths = torch.tensor([len(x) for x, _ in pairs])
    mask = torch.arange(int(lengths.max()) + more) < lengths.unsqueeze(-1)
    x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    padded = (
        values.new_full((*mask.shape, *values.shape[1:]), fill)
        for values, fill in ((x, word), (y, label))
    )
    return *(
        rows.index_put((mask,), values) for rows, values in zip(padded, (x, y), strict=True)
    ), mask


SENTENCES = sentences([5, 2, 7, 1, 4, 4])


def predicted(model, guide, batches, *, num_samples=3, **options):
    torch.manual_seed(1)
    return predict(model, guide, batches, num_samples=num_samples, **options)
