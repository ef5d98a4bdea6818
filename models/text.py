"""Transformers for texts of varying length with an exchangeable attention layer in each block."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from probattn.attention.base import LayerFactory
from probattn.attention.softmax import SoftmaxAttention
from probattn.evaluation_mode import evaluation_mode
from probattn.models.blocks import Blocks
from probattn.models.dropout import make_dropout
from probattn.sites import name_layers


class TextTransformer(nn.Module):
    """Text classifier: embedding, learned positions, pre-norm blocks, mean over the real tokens, linear head.

    Padding is masked out of attention and pooling, so it never changes an output.

    Args:
        embedding: maps a batch ``(batch, tokens, ...)`` to vectors ``(batch, tokens, dim)``: one of
            :mod:`probattn.models.embeddings`, or ``nn.Linear`` where tokens come as features of another network.
        max_length: maximum number of tokens.
        classes: number of outputs.
        dim, depth, heads, mlp_dim: width, number of blocks, heads of each, hidden width.
        dropout: dropout rate.
        attention: layer of every block, or a sequence of one per block (see :func:`last`): a name, a class or a factory
            ``(dim, heads) -> layer`` (see :func:`~probattn.models.layer_factories.layer_factory`).

    Raises:
        ValueError: a number of factories other than ``depth``; a dropout rate outside [0, 1).
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
        attention: str | LayerFactory | Sequence[str | LayerFactory] = SoftmaxAttention,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = nn.Parameter(0.1 * torch.randn(max_length, dim))
        self.dropout = make_dropout(dropout)
        self.blocks = Blocks(attention, depth=depth, dim=dim, heads=heads, mlp_dim=mlp_dim, dropout=dropout)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        name_layers(self)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits ``(*draws, batch, classes)``.

        Args:
            x: tokens ``(batch, tokens, ...)``, the input of the embedding.
            mask: ``(batch, tokens)``, True at real tokens; None if all are real.

        Raises:
            ValueError: more tokens than ``max_length``; a text without tokens.
        """
        return self.head(self.norm(masked_mean(self.blocks(self.tokens(x), mask), mask)))

    @torch.no_grad()
    def initialise_inducing(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Initialise the inducing inputs of each layer from hidden states of a batch.

        Args:
            x, mask: a batch of the training data, as for :meth:`forward`.
        """
        with evaluation_mode(self):
            self.blocks.initialise_inducing(self.tokens(x), mask)

    def tokens(self, x: Tensor) -> Tensor:
        """Return embedded tokens plus positions, ``(batch, tokens, dim)``."""
        length = x.shape[1]
        if length > len(self.positions):
            raise ValueError(f"this network takes at most max_length={len(self.positions)} tokens, got {length}")
        return self.dropout(self.embedding(x) + self.positions[:length])


class TextTagger(TextTransformer):
    """Token classifier: the same network without pooling, for ``likelihoods.TokenCategorical``."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits ``(*draws, batch, tokens, classes)``; arguments and errors as for :class:`TextTransformer`."""
        return self.head(self.norm(self.blocks(self.tokens(x), mask)))


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over real tokens, ``(..., batch, dim)``.

    Args:
        x: ``(..., batch, tokens, dim)``; values at padding are ignored, NaN included.
        mask: ``(batch, tokens)`` with at least one True in each row; None if all tokens are real.
    """
    if mask is None:
        return x.mean(-2)
    real = mask.unsqueeze(-1)
    return x.where(real, 0.0).sum(-2) / real.sum(-2)
