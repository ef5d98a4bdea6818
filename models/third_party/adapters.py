"""What stands where other libraries' attention layers stood: their call outside, a layer of this library inside."""

from typing import Any

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.handlers import num_folded
from probattn.models.third_party import masks

Outputs = Tensor | tuple[Tensor | None, ...]

HARMLESS = ("output_attentions",)
"""Options of other libraries' attention that do not change what it puts out first."""


class Adapter(PyroModule):
    """A layer that takes draws on the left where a network knows only its batch.

    Args:
        layer: the layer.
        outputs: how many the old layer gave, in a tuple; None for a tensor.
    """

    def __init__(self, layer: ProbabilisticAttention, *, outputs: int | None) -> None:
        super().__init__()
        self.layer, self.outputs = layer, outputs

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The layer's output; draws that are folded into the batch are unfolded for the layer.

        Args:
            x: ``(batch, tokens, dim)``, or ``(S · batch, tokens, dim)`` inside :class:`~probattn.handlers.draws_in_batch`.
            mask: ``(batch, tokens)`` or ``(S · batch, tokens)``, True where there is a token; the same in all draws.

        Raises:
            ValueError: tokens that are no batch of sequences; draws that appear where no ``draws(S)`` says so.
        """
        if x.is_nested or x.dim() != 3:
            found = "a nested tensor" if x.is_nested else f"shape {tuple(x.shape)}"
            raise ValueError(f"{self.layer.label} takes tokens (batch, tokens, dim) and a mask here, got {found}")
        number = num_folded()
        inside = x if number is None else x.unflatten(0, (number, -1))
        output = self.layer(inside, None if mask is None else mask[: inside.shape[-3]])
        if output.shape != inside.shape:
            raise ValueError(
                f"{self.layer.label} gave {tuple(output.shape)} for tokens {tuple(inside.shape)}: several draws at "
                "once need `with draws(number)` around the converted network"
            )
        return output if number is None else output.flatten(0, 1)

    def give(self, attended: Tensor) -> Outputs:
        """An output in the old layer's form; there are no attention weights, or whatever else that one gave."""
        return attended if self.outputs is None else (attended, *[None] * (self.outputs - 1))

    def refuse_options(self, options: dict[str, Any]) -> None:
        """Refuses all that are set, but for the harmless ones."""
        for name, option in options.items():
            if name not in HARMLESS and option is not None and option is not False:
                self.refuse(name, "it has no counterpart")

    def refuse(self, what: str, why: str) -> None:
        """Raises a ValueError that names the layer."""
        raise ValueError(f"{self.layer.label} got {what}: {why}; leave this layer as it is")


class MultiheadAdapter(Adapter):
    """In the place of ``nn.MultiheadAttention``.

    Args:
        batch_first: as of the old layer; the rest as of every adapter.
    """

    # The fused paths of nn.TransformerEncoder and its layers read these, and are not taken.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, layer: ProbabilisticAttention, *, outputs: int | None, batch_first: bool) -> None:
        super().__init__(layer, outputs=outputs)
        self.batch_first = batch_first

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Outputs:
        """Attends over the real tokens of a sequence; the arguments are those of ``nn.MultiheadAttention``.

        Raises:
            ValueError: cross-attention, or a mask of more than padding.
        """
        if any(each is not query and not torch.equal(each, query) for each in (key, value)):
            self.refuse("a query that is not key and value", "cross-attention has no counterpart")
        if attn_mask is not None or is_causal:
            self.refuse("attn_mask or is_causal", "it attends over all real tokens")
        mask = key_padding_mask
        if mask is not None:
            mask = masks.shown(mask) if mask.is_floating_point() else ~mask
        if self.batch_first:
            return self.give(self.attend(query, mask))
        return self.give(self.attend(query.transpose(0, 1), mask).transpose(0, 1))


class JointAdapter(Adapter):
    """In the place of timm's attention, whose query, key and value are one map ``qkv``.

    Args:
        after: what the output passes through at last, dropout; the rest as of every adapter.
    """

    def __init__(self, layer: ProbabilisticAttention, *, outputs: int | None, after: nn.Module) -> None:
        super().__init__(layer, outputs=outputs)
        self.after = after

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Outputs:
        """Attends over the real tokens ``(batch, tokens, dim)`` that a mask ``(batch, 1, queries, tokens)`` shows.

        Raises:
            ValueError: a mask of more than padding, or any other option that is set, such as is_causal or rope.
        """
        self.refuse_options(options)
        return self.give(self.after(self.attend(x, masks.of_keys(attn_mask, x))))


class SeparateAdapter(Adapter):
    """In the place of Hugging Face attention with maps of its own for query, key and value."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *rest: Any, **options: Any
    ) -> Outputs:
        """Attends over the real tokens ``(batch, tokens, dim)``; arguments are those of transformers 4 and 5.

        Raises:
            ValueError: a mask of more than padding, or any other option that is set, such as is_causal, a cache,
                encoder_hidden_states or a bias of the scores.
        """
        self.refuse_options(options)
        if any(argument is not None and argument is not False for argument in rest):
            self.refuse("more positional arguments than tokens and mask", "head masks and caches have no counterpart")
        return self.give(self.attend(hidden_states, masks.of_keys(attention_mask, hidden_states)))
