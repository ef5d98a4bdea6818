"""Transformer for tables, whose tokens are the columns, with an exchangeable attention layer in
each block."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from probattn import SoftmaxAttention
from probattn.models.blocks import Transformer
from probattn.models.layer_factories import Attention


class TabularTransformer(Transformer):
    """Network for rows of a table: a token per column, pre-norm blocks, mean pool, linear head.

    The token of a number x_j is x_j w_j + b_j, that of a category its embedding plus b_j
    (FT-Transformer, Gorishniy et al., 2021, section 3.3; here with a mean over the tokens in place
    of a class token).

    Args:
        sizes: number of codes of each column of categories, None for a column of numbers.
        outputs: number of outputs.
        dim: width of the tokens.
        depth: number of blocks.
        heads: number of heads of each block.
        mlp_dim: hidden width of the MLP of each block.
        dropout: dropout rate.
        attention: factory ``(dim, heads) -> layer`` for every block, or one factory per block (see
            :func:`last`).
        units: mean and standard deviation of the labels of a regression: outputs are
            ``mean + std * head(...)``, in the units of the labels. None for classes.

    Raises:
        ValueError: a number of factories other than ``depth``; a dropout rate outside [0, 1).
    """

    def __init__(
        self,
        sizes: Sequence[int | None],
        *,
        outputs: int,
        dim: int,
        depth: int,
        heads: int,
        mlp_dim: int,
        dropout: float = 0.0,
        attention: Attention = SoftmaxAttention,
        units: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        self.embedding = ColumnEmbedding(sizes, dim)
        self.add_blocks(
            attention,
            outputs=outputs,
            dim=dim,
            depth=depth,
            heads=heads,
            mlp_dim=mlp_dim,
            dropout=dropout,
            network="tabular",
            tokens=len(sizes),
        )
        self.units = None if units is None else nn.Buffer(torch.tensor(units))

    def outputs_of(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return outputs of the states above all blocks, in the units of the labels."""
        outputs = super().outputs_of(states, mask)
        return outputs if self.units is None else self.units[0] + self.units[1] * outputs

    def tokens(self, x: Tensor) -> Tensor:
        """Return a token for each column, ``(batch, columns, dim)``, of rows ``(batch, columns)``.

        Raises:
            ValueError: another number of columns.
        """
        return self.dropout(self.embedding(x))


class ColumnEmbedding(nn.Module):
    """Map rows ``(batch, columns)`` to a vector for each column, ``(batch, columns, dim)``.

    Args:
        sizes: number of codes of each column of categories, None for a column of numbers. Code 0,
            an unknown category, has the vector 0, so that its token is the column's bias, which
            training with such codes fits.
        dim: width.
    """

    def __init__(self, sizes: Sequence[int | None], dim: int) -> None:
        super().__init__()
        self.columns = len(sizes)
        self.is_category = nn.Buffer(
            torch.tensor([size is not None for size in sizes]), persistent=False
        )
        counts = [size or 0 for size in sizes]
        self.starts = nn.Buffer(torch.tensor([0, *counts])[:-1].cumsum(0), persistent=False)
        self.weight = nn.Parameter(torch.randn(self.columns, dim))
        self.bias = nn.Parameter(torch.randn(self.columns, dim))
        self.codes = nn.Embedding(1 + sum(counts), dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors of rows, whose categories are codes.

        Raises:
            ValueError: another number of columns.
        """
        if x.shape[-1] != self.columns:
            raise ValueError(
                f"this network takes rows of {self.columns} columns, got {tuple(x.shape)}"
            )
        numbers = x.unsqueeze(-1) * self.weight
        codes = x.where(self.is_category, 0).long()
        categories = self.codes(codes + self.starts).where((codes > 0).unsqueeze(-1), 0.0)
        return self.bias + categories.where(self.is_category.unsqueeze(-1), numbers)
