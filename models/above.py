"""The part of a model above the states that do not depend on its latent variables."""

from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor, nn

from probattn.local_sites import local_sites

if TYPE_CHECKING:
    from probattn.models.supervised import Supervised


class Above(nn.Module):
    """Model of the hidden states at the first stochastic block of a supervised model's network.

    Inside ``with above:``, runs of the model with posterior samples keep these states. Called, it
    is the program of the model on kept states, with the same sites.

    Args:
        model: a model whose network is a :class:`~probattn.models.blocks.Transformer`.
    """

    def __init__(self, model: "Supervised") -> None:
        super().__init__()
        self.model = model
        self.number = 0
        self.states: list[Tensor] = []

    def __enter__(self) -> Self:
        self.number, self.states = 0, []
        blocks = cast(Any, self.model.network).blocks
        self.hooks = [
            block.register_forward_hook(self._keep(number)) for number, block in enumerate(blocks)
        ]
        return self

    def __exit__(self, *error: Any) -> None:
        for hook in self.hooks:
            hook.remove()

    def _keep(self, number: int) -> Any:
        """Return the hook of a block, which keeps its input if the draws appear in its output."""

        def keep(block: nn.Module, inputs: tuple, output: Tensor) -> None:
            if output.dim() > inputs[0].dim():
                self.number = number
                self.states.append(inputs[0])

        return keep

    def inputs(self, x: Tensor) -> Tensor:
        """Return the states ``(batch, tokens, dim)`` of inputs; the inputs if the model kept
        none."""
        return torch.cat(self.states) if self.states else x

    def forward(self, x: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Sample the labels of kept states, or observe them; arguments as for the model."""
        if not self.states:
            return self.model(x, y, mask)
        with local_sites(batch=x.shape[0], num_data=self.model.num_data):
            masks = () if mask is None else (mask,)
            outputs = cast(Any, self.model.network).outputs_above(self.number, x, *masks)
            return self.model.sample_labels(self.model.likelihood(outputs, *masks), y)
