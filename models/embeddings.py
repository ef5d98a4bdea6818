"""What turns the tokens of a text into vectors: of words, of their spelling, or of another network's features."""

import torch
from torch import Tensor, nn

CHARACTER_DIM = 16
FILTERS = {1: 16, 2: 32, 3: 64, 4: 64}
"""Width of the vectors of characters, and the number of filters of each length."""


class WordEmbedding(nn.Embedding):
    """A learned vector for each word; id 0 is padding.

    Args:
        words: size of the vocabulary, padding and the unknown word included.
        dim: width of the vectors, whose scalars have at first a standard deviation of ``scale``.
        scale: that deviation.
    """

    def __init__(self, words: int, dim: int, *, scale: float = 1.0) -> None:
        super().__init__(words, dim, padding_idx=0)
        with torch.no_grad():
            self.weight *= scale


class SpellingEmbedding(nn.Module):
    """A vector of each word from its characters: convolutions, maximum over the word, highway, projection.

    The character encoder under ELMo (Peters et al., 2018; Kim et al., 2016), trained with the network. Words that the
    training part does not have share endings and stems with those that it has.

    Args:
        characters: number of characters, padding (0) and the unknown one included.
        dim: width of the vectors.
    """

    def __init__(self, characters: int, dim: int) -> None:
        super().__init__()
        width = sum(FILTERS.values())
        self.characters = nn.Embedding(characters, CHARACTER_DIM, padding_idx=0)
        self.filters = nn.ModuleList(
            nn.Conv1d(CHARACTER_DIM, number, length, padding=length - 1) for length, number in FILTERS.items()
        )
        self.gate, self.change = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)  # at first most passes unchanged
        self.out = nn.Linear(width, dim)

    def forward(self, characters: Tensor) -> Tensor:
        """Vectors ``(..., dim)`` of words ``(..., K)``; how many 0 stand behind a word's end does not matter."""
        words, place = torch.unique(characters.flatten(0, -2), dim=0, return_inverse=True)
        ends = (words != 0).sum(-1, keepdim=True)
        vectors = self.characters(words[:, : max(1, ends.max())]).mT
        found = torch.cat([self._strongest(filters, vectors, ends) for filters in self.filters], dim=-1).relu()
        gate = self.gate(found).sigmoid()
        found = gate * self.change(found).relu() + (1 - gate) * found
        return self.out(found)[place].unflatten(0, characters.shape[:-1])

    @staticmethod
    def _strongest(filters: nn.Conv1d, vectors: Tensor, ends: Tensor) -> Tensor:
        """The maximum of each filter over the places where it touches the word, ``(words, filters)``."""
        answers = filters(vectors)
        inside = torch.arange(answers.shape[-1], device=ends.device) < ends + filters.padding[0]
        return answers.where(inside.unsqueeze(1), -torch.inf).amax(-1)


class SpelledEmbedding(nn.Module):
    """The sum of a word's vector and of the vector of its spelling.

    Args:
        words: size of the vocabulary, padding and the unknown word included.
        characters: number of characters, padding and the unknown one included.
        dim: width of the vectors.
        scale: of the words' vectors at first.
    """

    def __init__(self, words: int, characters: int, dim: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.words = WordEmbedding(words, dim, scale=scale)
        self.spelling = SpellingEmbedding(characters, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Vectors ``(batch, tokens, dim)`` of ids ``(batch, tokens, 1 + K)``: the word's, then its characters'."""
        return self.words(x[..., 0]) + self.spelling(x[..., 1:])
