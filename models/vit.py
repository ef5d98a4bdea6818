"""Vision transformer with an exchangeable attention layer in each block."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probattn import SoftmaxAttention
from probattn.models.blocks import Transformer
from probattn.models.layer_factories import Attention


class ViT(Transformer):
    """Vision transformer without class token: patches, learned positions, pre-norm blocks, mean
    pool, linear head.

    Args:
        image_size: height and width in pixels; a multiple of ``patch_size``.
        patch_size: side of a patch in pixels.
        channels: channels of the images.
        classes: number of outputs.
        dim: width of the tokens.
        depth: number of blocks.
        heads: number of heads of each block.
        mlp_dim: hidden width of the MLP of each block.
        dropout: dropout rate.
        standardise: subtract the mean of each image and divide by its standard deviation, so that
            predictions do not depend on brightness and contrast.
        attention: layer of every block, or a sequence of one per block (see :func:`last`): a name,
            a class or a factory ``(dim, heads) -> layer`` (see
            :func:`~probattn.models.layer_factories.layer_factory`).

    Raises:
        ValueError: a patch size that does not divide the image; a number of factories other than
            ``depth``; a dropout rate outside [0, 1).
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
        standardise: bool = False,
        attention: Attention = SoftmaxAttention,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise ValueError(f"patch_size {patch_size} does not divide image_size {image_size}")
        self.image_shape = (channels, image_size, image_size)
        self.patch_size = patch_size
        self.standardise = standardise
        self.embed = nn.Linear(channels * patch_size**2, dim)
        self.positions = nn.Parameter(torch.randn((image_size // patch_size) ** 2, dim))
        self.add_blocks(
            attention,
            outputs=classes,
            dim=dim,
            depth=depth,
            heads=heads,
            mlp_dim=mlp_dim,
            dropout=dropout,
            network="vit",
            tokens=len(self.positions),
        )

    def tokens(self, images: Tensor) -> Tensor:
        """Return embedded patches plus positions, ``(batch, tokens, dim)``, of images
        ``(batch, channels, height, width)``.

        Raises:
            ValueError: images of another shape.
        """
        if images.shape[1:] != self.image_shape:
            raise ValueError(
                f"this ViT takes images (batch, {self.image_shape}), got {tuple(images.shape)}; "
                "of a single one images.unsqueeze(0)"
            )
        images = F.layer_norm(images, self.image_shape) if self.standardise else images
        return self.dropout(self.embed(patches(images, self.patch_size)) + self.positions)


def patches(images: Tensor, size: int) -> Tensor:
    """Split images into non-overlapping patches, row by row: ``(B, C, H, W)`` →
    ``(B, H·W / size², C · size²)``."""
    # (B, C, H / size, W / size, size, size); F.unfold runs a kernel per image.
    blocks = images.unfold(2, size, size).unfold(3, size, size)
    return blocks.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
