"""Transformers of texts of varying length, with any attention layer in any block."""

from collections.abc import Sequence

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from probattn.attention.base import LayerFactory
from probattn.attention.softmax import SoftmaxAttention
from probattn.models.blocks import Blocks, evaluating
from probattn.param_effects import SkipParamEffects


class TextTransformer(SkipParamEffects, PyroModule):
    """One answer for a text: embedded tokens with positions, pre-norm blocks, mean over the real tokens, linear head.

    Padding is masked out of attention and pooling: it never changes what is said of a real token.

    Args:
        embedding: maps a batch ``(batch, tokens, ...)`` to vectors ``(batch, tokens, dim)``: one of
            :mod:`probattn.models.embeddings`, or ``nn.Linear`` where tokens come as features of another network.
        max_length: the most tokens of a text.
        classes: number of outputs.
        dim, depth, heads, mlp_dim: width, number of blocks, heads of each, hidden width.
        dropout: dropout rate.
        attention: factory ``(dim, heads) -> layer`` of every block, or one factory per block (see :func:`last`).

    Raises:
        ValueError: a number of factories other than ``depth``.
    """

    def __init__(
        self,
        embedding: nn.Module,
        *,
        max_length: int,
        classes: int,
        dim: int,
        depth: int,
        heads: int,
        mlp_dim: int,
        dropout: float = 0.0,
        attention: LayerFactory | Sequence[LayerFactory] = SoftmaxAttention,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = nn.Parameter(0.1 * torch.randn(max_length, dim))
        self.dropout = nn.Dropout(dropout)
        self.blocks = Blocks(attention, depth=depth, dim=dim, heads=heads, mlp_dim=mlp_dim, dropout=dropout)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits ``(*draws, batch, classes)``.

        Args:
            x: tokens ``(batch, tokens, ...)`` as the embedding takes them.
            mask: ``(batch, tokens)``, True where there is a token; without it all are real.

        Raises:
            ValueError: more tokens than ``max_length``; a text without a token.
        """
        return self.head(self.norm(mean_of_real(self.blocks(self.tokens(x), mask), mask)))

    @torch.no_grad()
    def initialise_inducing(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Sets the inducing inputs of every layer that has some to vectors which these texts give in its place.

        To be called once the network is part of its model: Pyro fixes the names of sites when a module first runs.

        Args:
            x, mask: a batch of the training data, as for :meth:`forward`.
        """
        with evaluating(self):
            self.blocks.initialise_inducing(self.tokens(x), mask)

    def tokens(self, x: Tensor) -> Tensor:
        """Embedded tokens with their positions, ``(batch, tokens, dim)``."""
        length = x.shape[1]
        if length > len(self.positions):
            raise ValueError(f"this network takes at most max_length={len(self.positions)} tokens, got {length}")
        return self.dropout(self.embedding(x) + self.positions[:length])


class TextTagger(TextTransformer):
    """One answer for every token: the same network without pooling, for :class:`~probattn.models.TokenCategorical`."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits ``(*draws, batch, tokens, classes)``; arguments and errors as above."""
        return self.head(self.norm(self.blocks(self.tokens(x), mask)))


def mean_of_real(x: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over real tokens ``(..., batch, dim)`` of x ``(..., batch, tokens, dim)``.

    Args:
        x: vectors; those at padding may be anything, NaN too.
        mask: ``(batch, tokens)`` with at least one True in each row, or None: all are real.
    """
    if mask is None:
        return x.mean(-2)
    real = mask.unsqueeze(-1)
    return x.where(real, 0.0).sum(-2) / real.sum(-2)
