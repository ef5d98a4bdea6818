"""Transformer blocks with an exchangeable attention layer, used by all networks of this library."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from probattn import ProbabilisticAttention, name_layers
from probattn.attention.base import LayerFactory
from probattn.draws import at_mean
from probattn.evaluation_mode import evaluation_mode
from probattn.models.dropout import make_dropout
from probattn.models.layer_factories import Attention, layer_factories


class Block(nn.Module):
    """Pre-norm encoder block: x + attention(norm(x)), then x + mlp(norm(x)).

    Args:
        dim: width of the tokens.
        heads: number of heads.
        mlp_dim: hidden width.
        dropout: dropout rate after attention and after both layers of the MLP, in [0, 1).
        attention: factory of the attention layer.

    Raises:
        ValueError: a dropout rate out of bounds.
    """

    def __init__(
        self, dim: int, heads: int, *, mlp_dim: int, dropout: float, attention: LayerFactory
    ) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(dim)
        self.attention = attention(dim, heads)
        self.dropout = make_dropout(dropout)
        self.norm_mlp = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, mlp_dim),
            nn.GELU(),
            make_dropout(dropout),
            nn.Linear(mlp_dim, dim),
            make_dropout(dropout),
        )

    def forward(self, x: Tensor, *mask: Tensor) -> Tensor:
        """Map ``(*draws, batch, tokens, dim)`` to the same shape; the attention layer may add the
        draws dimension."""
        x = x + self.dropout(self.attention(self.norm_attention(x), *mask))
        return x + self.mlp(self.norm_mlp(x))

    def attention_input(self, x: Tensor) -> Tensor:
        """Return norm(x); a path of inducing inputs holds this method, so that the norm may be
        replaced."""
        return self.norm_attention(x)

    def feed_forward_without_dropout(self, x: Tensor) -> Tensor:
        """Apply the second half without dropout in any mode, for inducing inputs, which are
        parameters and not data."""
        hidden = self.norm_mlp(x)
        for module in self.mlp:
            hidden = hidden if isinstance(module, nn.Dropout) else module(hidden)
        return x + hidden


class Blocks(nn.Sequential):
    """Sequence of blocks."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map ``(*draws, batch, tokens, dim)`` to the same shape; outputs at padding are arbitrary.

        Args:
            x: tokens; blocks with draws may add the draws dimension.
            mask: ``(batch, tokens)``, True at real tokens.
        """
        masks = () if mask is None else (mask,)
        for block in self:
            x = block(x, *masks)
        return x


class Transformer(nn.Module):
    """Base of the networks: tokens, blocks, mean over the real tokens, layer norm, linear head.

    A subclass registers its embedding, calls :meth:`add_blocks`, and defines ``tokens``.
    """

    def add_blocks(
        self,
        attention: Attention,
        *,
        outputs: int,
        depth: int,
        dim: int,
        heads: int,
        mlp_dim: int,
        dropout: float,
        **network: Any,
    ) -> None:
        """Add dropout, blocks, norm and head.

        Args:
            attention: layer of every block, or a sequence of one per block, as for
                :func:`layer_factories <probattn.models.layer_factories.layer_factories>` (see
                :func:`last`).
            outputs: number of outputs.
            depth: number of blocks.
            dim, heads, mlp_dim, dropout: of each :class:`Block`.
            network: kind of the network, and its number of tokens if that is fixed, for layers by
                name.

        Raises:
            ValueError: a number of factories other than ``depth``; a dropout rate out of bounds.
        """
        self.dropout = make_dropout(dropout)
        factories = layer_factories(attention, depth=depth, **network)
        blocks = (
            Block(dim, heads, mlp_dim=mlp_dim, dropout=dropout, attention=factory)
            for factory in factories
        )
        self.blocks: Any = Blocks(*blocks)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, outputs)
        self.connect_inducing_inputs()
        name_layers(self)

    def connect_inducing_inputs(self) -> None:
        """Set the path of each layer's inducing inputs through the block below; call again after
        replacing a layer."""
        path: list[Callable[[Tensor], Tensor]] = []
        for block in self.blocks:
            if isinstance(block.attention, ProbabilisticAttention):
                block.attention.follow(*path, block.attention_input)
            path = [block.feed_forward_without_dropout]

    def tokens(self, x: Tensor) -> Tensor:
        """Return the embedded tokens ``(batch, tokens, dim)`` of inputs."""
        raise NotImplementedError

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return outputs ``(*draws, batch, outputs)``.

        Args:
            x: inputs ``(batch, ...)``.
            mask: ``(batch, tokens)``, True at real tokens; None if all are real.

        Raises:
            ValueError: inputs that do not fit the network.
        """
        return self.outputs_of(self.blocks(self.tokens(x), mask), mask)

    def outputs_of(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return outputs of the states above all blocks ``(*draws, batch, tokens, dim)``."""
        return self.head(self.norm(masked_mean(states, mask)))

    @torch.no_grad()
    def initialise_inducing(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Initialise the inducing inputs of each layer from hidden states of a batch of the
        training data at the input of its block, once: those of a layer that has been initialised or
        loaded stay. :func:`probattn.inference.fit` does so with its first batch.

        Local latent sites of lower layers are at their posterior means, global ones at their prior
        means.

        Args:
            x: inputs ``(batch, ...)``.
            mask: ``(batch, tokens)``, True at real tokens.
        """
        masks, real = ((), ...) if mask is None else ((mask,), mask)
        self.connect_inducing_inputs()
        with evaluation_mode(self), at_mean():
            stream = x = self.tokens(x)
            for block in self.blocks:
                if isinstance(block.attention, ProbabilisticAttention):
                    block.attention.place(stream[real])
                # The path to the next layer's inducing inputs starts here, between the halves of
                # the block.
                stream = x + block.attention(block.norm_attention(x), *masks)
                x = block.feed_forward_without_dropout(stream)


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
