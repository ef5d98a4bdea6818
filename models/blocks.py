"""Transformer blocks with any attention layer in any of them: what all networks of this library are made of."""

import copyreg
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from probattn.attention.base import LayerFactory, ProbabilisticAttention
from probattn.attention.softmax import SoftmaxAttention
from probattn.handlers import at_mean, local_posteriors
from probattn.param_effects import SkipParamEffects
from probattn.torch_compat import is_dropout


class Block(SkipParamEffects, PyroModule):
    """Pre-norm encoder block: x + attention(norm(x)), then x + mlp(norm(x)).

    Args:
        dim: width of the tokens.
        heads: number of heads.
        mlp_dim: hidden width.
        dropout: rate behind attention and behind both layers of the MLP.
        attention: factory of the attention layer.
    """

    def __init__(self, dim: int, heads: int, *, mlp_dim: int, dropout: float, attention: LayerFactory) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(dim)
        self.attention = attention(dim, heads)
        self.dropout = nn.Dropout(dropout)
        self.norm_mlp = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, mlp_dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp_dim, dim), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor, *mask: Tensor) -> Tensor:
        """Maps ``(*draws, batch, tokens, dim)`` to that shape, with the attention layer's draws broadcast in."""
        return self.feed_forward(self.attend(x, *mask))

    def attend(self, x: Tensor, *mask: Tensor) -> Tensor:
        """The first half: x + attention(norm(x))."""
        return x + self.dropout(self.attention(self.normed(x), *mask))

    def normed(self, x: Tensor) -> Tensor:
        """What the attention layer sees of x."""
        return self.norm_attention(x)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The second half: x + mlp(norm(x)), token by token."""
        return x + self.mlp(self.norm_mlp(x))

    def carry(self, x: Tensor) -> Tensor:
        """The second half without dropout in any mode, for inducing inputs, which are parameters and not data."""
        return x + without_dropout(self.mlp, self.norm_mlp(x))


class Blocks(SkipParamEffects, PyroModule[nn.Sequential]):
    """Blocks one behind the other.

    Args:
        attention: factory ``(dim, heads) -> layer`` of every block, or one factory per block (see :func:`last`).
        depth: number of blocks.
        dim, heads, mlp_dim, dropout: of each :class:`Block`.

    Raises:
        ValueError: a number of factories other than ``depth``.
    """

    def __init__(
        self,
        attention: LayerFactory | Sequence[LayerFactory],
        *,
        depth: int,
        dim: int,
        heads: int,
        mlp_dim: int,
        dropout: float,
    ) -> None:
        factories = list(attention) if isinstance(attention, Sequence) else [attention] * depth
        if len(factories) != depth:
            raise ValueError(f"{len(factories)} attention factories for {depth} blocks; give one, or one per block")
        super().__init__(
            *(Block(dim, heads, mlp_dim=mlp_dim, dropout=dropout, attention=factory) for factory in factories)
        )
        self.connect()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Maps ``(*draws, batch, tokens, dim)`` to that shape; mask ``(batch, tokens)``, True where there is a token.

        What comes out at padding is arbitrary.
        """
        given = () if mask is None else (mask,)
        for block in self:
            x = block(x, *given)
        return x

    def __reduce__(self) -> tuple:
        """For copies and pickles: Pyro's own makes a plain ``Sequential`` of a subclass."""
        return copyreg.__newobj__, (type(self),), self.__dict__.copy()

    def connect(self) -> None:
        """Tells each attention layer what it follows on; to be called again where a layer was put in later."""
        path = []
        for block in self:
            if isinstance(block.attention, ProbabilisticAttention):
                block.attention.follow(*path, block.normed)
            path = [block.carry]

    @torch.no_grad()
    def initialise_inducing(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Sets the inducing inputs of every layer that has some to vectors which these tokens give in its place.

        Layers below are at the means of their posteriors, global sites at those of their priors.

        Args:
            x: what the first block sees of a batch, ``(batch, tokens, dim)``.
            mask: ``(batch, tokens)``, True where there is a token.
        """
        given, real = ((), ...) if mask is None else ((mask,), mask)
        self.connect()
        stream = x
        with evaluating(self), at_mean(), local_posteriors():
            for block in self:
                if isinstance(block.attention, ProbabilisticAttention):
                    block.attention.initialise(stream[real])
                stream = block.attend(x, *given)
                x = block.feed_forward(stream)


def last(number: int, attention: LayerFactory, *, of: int, rest: LayerFactory = SoftmaxAttention) -> list[LayerFactory]:
    """One factory per block: ``attention`` in the last ``number`` of ``of`` blocks, ``rest`` in those below.

    Raises:
        ValueError: a number outside 0..of.
    """
    if not 0 <= number <= of:
        raise ValueError(f"cannot replace the last {number} of {of} blocks")
    return [rest] * (of - number) + [attention] * number


def without_dropout(module: nn.Module, x: Tensor) -> Tensor:
    """The output of a module, or of a sequence of modules less those that drop out."""
    if isinstance(module, nn.Sequential):
        for part in module:
            x = without_dropout(part, x)
        return x
    return x if is_dropout(module) else module(x)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; each module has its own mode again behind."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
