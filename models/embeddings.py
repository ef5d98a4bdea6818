"""Token embeddings of texts: of words, of their characters, and both."""

import torch
from torch import Tensor, nn

CHARACTER_DIM = 16
FILTERS = {1: 16, 2: 32, 3: 64, 4: 64}
"""Dimension of character embeddings, and the number of convolution filters by length."""


class WordEmbedding(nn.Embedding):
    """Learned embedding of word ids; id 0 is padding.

    Args:
        words: size of the vocabulary, padding and the unknown word included.
        dim: embedding dimension.
    """

    def __init__(self, words: int, dim: int) -> None:
        super().__init__(words, dim, padding_idx=0)


class SpellingEmbedding(nn.Module):
    """Character CNN embedding of words: convolutions, max over positions, highway layer,
    projection.

    The character encoder of ELMo (Peters et al., 2018; Kim et al., 2016), trained with the network.
    Words outside the training vocabulary share endings and stems with known ones.

    Args:
        characters: number of characters, padding (0) and the unknown one included.
        dim: embedding dimension.
    """

    def __init__(self, characters: int, dim: int) -> None:
        super().__init__()
        width = sum(FILTERS.values())
        self.characters = nn.Embedding(characters, CHARACTER_DIM, padding_idx=0)
        self.filters = nn.ModuleList(
            nn.Conv1d(CHARACTER_DIM, number, length, padding=length - 1)
            for length, number in FILTERS.items()
        )
        self.gate = nn.Linear(width, width)
        self.change = nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)  # initially close to the identity
        self.out = nn.Linear(width, dim)

    def forward(self, characters: Tensor) -> Tensor:
        """Return embeddings ``(..., dim)`` of words ``(..., K)``; trailing padding is ignored.

        On a CPU each distinct word is embedded once, without its padding; elsewhere that would wait
        for the device.
        """
        words = characters.flatten(0, -2)
        if characters.device.type != "cpu" or torch.compiler.is_exporting():
            return self._embed(words).unflatten(0, characters.shape[:-1])
        words, inverse = torch.unique(words, dim=0, return_inverse=True)
        longest = max(1, (words != 0).sum(-1).max())
        return self._embed(words[:, :longest])[inverse].unflatten(0, characters.shape[:-1])

    def _embed(self, words: Tensor) -> Tensor:
        """Return embeddings ``(words, dim)`` of words ``(words, K)``."""
        lengths = (words != 0).sum(-1, keepdim=True)
        vectors = self.characters(words).mT
        filters = zip(self.filters, FILTERS, strict=True)
        pooled = [
            _max_pool(convolution(vectors), lengths + length - 1) for convolution, length in filters
        ]
        features = torch.cat(pooled, dim=-1).relu()
        gate = self.gate(features).sigmoid()
        return self.out(gate * self.change(features).relu() + (1 - gate) * features)


def _max_pool(responses: Tensor, overlapping: Tensor) -> Tensor:
    """Return the maximum of each filter over the first positions, which overlap the word,
    ``(words, filters)``."""
    inside = torch.arange(responses.shape[-1], device=responses.device) < overlapping
    return responses.where(inside.unsqueeze(1), -torch.inf).amax(-1)


class SpelledEmbedding(nn.Module):
    """Sum of a word embedding and the embedding of the word's characters.

    Args:
        words: size of the vocabulary, padding and the unknown word included.
        characters: number of characters, padding and the unknown one included.
        dim: embedding dimension.
    """

    def __init__(self, words: int, characters: int, dim: int) -> None:
        super().__init__()
        self.words = WordEmbedding(words, dim)
        self.spelling = SpellingEmbedding(characters, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings ``(batch, tokens, dim)`` of ids ``(batch, tokens, 1 + K)``: word id,
        then character ids."""
        return self.words(x[..., 0]) + self.spelling(x[..., 1:])
