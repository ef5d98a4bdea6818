"""Transformers for texts of varying length with an exchangeable attention layer in each block."""

import torch
from torch import Tensor, nn

from probattn import SoftmaxAttention
from probattn.models.blocks import Transformer
from probattn.models.layer_factories import Attention


class TextTransformer(Transformer):
    """Text classifier: embedding, learned positions, pre-norm blocks, mean over the real tokens,
    linear head.

    Padding is masked out of attention and pooling, so it never changes an output.

    Args:
        embedding: maps a batch ``(batch, tokens, ...)`` to vectors ``(batch, tokens, dim)``: one of
            :mod:`probattn.models.embeddings`, or ``nn.Linear`` where tokens come as features of
            another network.
        max_length: maximum number of tokens.
        classes: number of outputs.
        dim: width of the tokens.
        depth: number of blocks.
        heads: number of heads of each block.
        mlp_dim: hidden width of the MLP of each block.
        dropout: dropout rate.
        attention: layer of every block, or a sequence of one per block (see :func:`last`): a name,
            a class or a factory ``(dim, heads) -> layer`` (see
            :func:`~probattn.models.layer_factories.layer_factory`).

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
        attention: Attention = SoftmaxAttention,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = nn.Parameter(0.1 * torch.randn(max_length, dim))
        self.add_blocks(
            attention,
            outputs=classes,
            dim=dim,
            depth=depth,
            heads=heads,
            mlp_dim=mlp_dim,
            dropout=dropout,
            network="text",
        )

    def tokens(self, x: Tensor) -> Tensor:
        """Return embedded tokens plus positions, ``(batch, tokens, dim)``, of texts
        ``(batch, tokens, ...)``.

        Raises:
            ValueError: more tokens than ``max_length``.
        """
        length = x.shape[1]
        if length > len(self.positions):
            raise ValueError(
                f"this network takes at most max_length={len(self.positions)} tokens, got {length}"
            )
        return self.dropout(self.embedding(x) + self.positions[:length])


class TextTagger(TextTransformer):
    """Token classifier: the same network without pooling, for ``likelihoods.TokenCategorical``,
    with logits ``(*draws, batch, tokens, classes)``."""

    def outputs_of(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits of the states above all blocks."""
        return self.head(self.norm(states))
