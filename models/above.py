"""The part of a model above the states that do not depend on its latent variables."""

from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from probattn import local_sites


class Above(nn.Module):
    """Model of the hidden states at the first stochastic block of a supervised model's network.

    Inside ``with above:``, runs of the model with posterior samples keep these states. Called, it
    is the program of the model on kept states, with the same sites.

    Args:
        model: a model whose network is a :class:`~probattn.models.blocks.Transformer`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model
        self.number = 0
        self.states: list[Tensor] = []

    def __enter__(self) -> Self:
        self.number, self.states = 0, []
        self.hooks = [
            block.register_forward_hook(partial(self._keep, number))
            for number, block in enumerate(self.model.network.blocks)
        ]
        return self

    def __exit__(self, *error: Any) -> None:
        for hook in self.hooks:
            hook.remove()

    def _keep(self, number: int, block: nn.Module, inputs: tuple, output: Tensor) -> None:
        """Keep the input of a block if the draws appear in its output."""
        if output.dim() > inputs[0].dim():
            self.number = number
            self.states.append(inputs[0])

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
            network = self.model.network
            x = network.blocks[self.number :](x, mask)
            likelihood = self.model.likelihood(network.outputs_of(x, *masks), *masks)
            return self.model.sample_labels(likelihood, y)
