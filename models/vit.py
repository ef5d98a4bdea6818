"""Vision transformer with any attention layer in any block."""

from collections.abc import Sequence

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from probattn.attention.base import LayerFactory, ProbabilisticAttention
from probattn.attention.softmax import SoftmaxAttention
from probattn.handlers import at_mean, local_posteriors


class Block(PyroModule):
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

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(*draws, batch, tokens, dim)`` to that shape, with the attention layer's draws broadcast in."""
        return self.feed_forward(self.attend(x))

    def attend(self, x: Tensor) -> Tensor:
        """The first half: x + attention(norm(x))."""
        return x + self.dropout(self.attention(self.normed(x)))

    def normed(self, x: Tensor) -> Tensor:
        """What the attention layer sees of x."""
        return self.norm_attention(x)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The second half: x + mlp(norm(x)), token by token."""
        return x + self.mlp(self.norm_mlp(x))


class ViT(PyroModule):
    """Vision transformer without class token: patches, learned positions, pre-norm blocks, mean pool, linear head.

    Args:
        image_size: height and width in pixels; a multiple of ``patch_size``.
        patch_size: side of a patch in pixels.
        channels: channels of the images.
        classes: number of outputs.
        dim, depth, heads, mlp_dim: width, number of blocks, heads of each, hidden width.
        dropout: dropout rate.
        attention: factory ``(dim, heads) -> layer`` of every block, or one factory per block (see :func:`last`).

    Raises:
        ValueError: a patch size that does not divide the image, or a number of factories other than ``depth``.
    """

    def __init__(
        self,
        *,
        image_size: int,
        patch_size: int,
        channels: int = 3,
        classes: int,
        dim: int,
        depth: int,
        heads: int,
        mlp_dim: int,
        dropout: float = 0.0,
        attention: LayerFactory | Sequence[LayerFactory] = SoftmaxAttention,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise ValueError(f"patch_size {patch_size} does not divide image_size {image_size}")
        factories = list(attention) if isinstance(attention, Sequence) else [attention] * depth
        if len(factories) != depth:
            raise ValueError(f"{len(factories)} attention factories for {depth} blocks; give one, or one per block")
        self.image_shape = (channels, image_size, image_size)
        self.patch_size = patch_size
        tokens = (image_size // patch_size) ** 2
        self.embed = nn.Linear(channels * patch_size**2, dim)
        self.positions = nn.Parameter(torch.randn(tokens, dim))
        self.dropout = nn.Dropout(dropout)
        self.blocks = PyroModule[nn.Sequential](
            *(Block(dim, heads, mlp_dim=mlp_dim, dropout=dropout, attention=factory) for factory in factories)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        self.connect()

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(*draws, batch, classes)`` of images ``(batch, channels, height, width)``.

        Raises:
            ValueError: images of another shape.
        """
        return self.head(self.norm(self.blocks(self.tokens(images)).mean(-2)))

    def connect(self) -> None:
        """Tells each attention layer what it follows on; to be called again where a layer was put in later."""
        path = []
        for block in self.blocks:
            if isinstance(block.attention, ProbabilisticAttention):
                block.attention.follow(*path, block.normed)
            path = [block.feed_forward]

    @torch.no_grad()
    def initialise_inducing(self, images: Tensor) -> None:
        """Sets the inducing inputs of every layer that has some to vectors which these images give in its place.

        Layers below are at the means of their posteriors, global sites at those of their priors. To be called once the
        network is part of its model: Pyro fixes the names of sites when a module first runs.

        Args:
            images: a batch of the training data ``(batch, channels, height, width)``.
        """
        modes = [(module, module.training) for module in self.modules()]
        self.connect()
        try:
            self.eval()
            stream = x = self.tokens(images)
            with at_mean(), local_posteriors():
                for block in self.blocks:
                    if isinstance(block.attention, ProbabilisticAttention):
                        block.attention.initialise(stream)
                    stream = block.attend(x)
                    x = block.feed_forward(stream)
        finally:
            for module, mode in modes:
                module.training = mode

    def tokens(self, images: Tensor) -> Tensor:
        """Embedded patches with their positions, ``(batch, tokens, dim)``."""
        if images.shape[1:] != self.image_shape:
            raise ValueError(f"this ViT takes images (batch, {self.image_shape}), got {tuple(images.shape)}")
        return self.dropout(self.embed(patches(images, self.patch_size)) + self.positions)


def patches(images: Tensor, size: int) -> Tensor:
    """Non-overlapping patches, row by row: ``(B, C, H, W)`` → ``(B, H·W / size², C · size²)``."""
    return nn.functional.unfold(images, kernel_size=size, stride=size).mT


def last(number: int, attention: LayerFactory, *, of: int, rest: LayerFactory = SoftmaxAttention) -> list[LayerFactory]:
    """One factory per block: ``attention`` in the last ``number`` of ``of`` blocks, ``rest`` in those below.

    Raises:
        ValueError: a number outside 0..of.
    """
    if not 0 <= number <= of:
        raise ValueError(f"cannot replace the last {number} of {of} blocks")
    return [rest] * (of - number) + [attention] * number
