"""Adapters that give a layer of this library the call signature of another library's attention layer."""

from typing import Any

import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.draws import num_folded
from probattn.models.third_party import masks

Outputs = Tensor | tuple[Tensor | None, ...]

IGNORED_OPTIONS = ("output_attentions", "cache_position")
"""Options of other libraries' attention layers that do not change their first output: caches are refused."""


class Adapter(nn.Module):
    """Base class: calls a layer of this library, with draws in a dimension of their own, on plain batches.

    Args:
        layer: the layer.
        num_outputs: length of the tuple that the original layer returned; None if it returned a tensor.
    """

    def __init__(self, layer: ProbabilisticAttention, *, num_outputs: int | None) -> None:
        super().__init__()
        self.layer, self.num_outputs = layer, num_outputs

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Apply the layer; draws folded into the batch are unfolded around it.

        Args:
            x: ``(batch, tokens, dim)``, or ``(S · batch, tokens, dim)`` with draws folded into the batch.
            mask: ``(batch, tokens)`` or ``(S · batch, tokens)``, True at real tokens; the same in all draws.

        Raises:
            ValueError: x is not a batch of sequences; the layer returns several draws outside ``draws(S)``.
        """
        if x.is_nested or x.dim() != 3:
            found = "a nested tensor" if x.is_nested else f"shape {tuple(x.shape)}"
            raise ValueError(f"{self.layer.label} takes tokens (batch, tokens, dim) and a mask here, got {found}")
        number = num_folded()
        unfolded = x if number is None else x.unflatten(0, (number, -1))
        output = self.layer(unfolded, None if mask is None else mask[: unfolded.shape[-3]])
        if output.shape != unfolded.shape:
            raise ValueError(
                f"{self.layer.label} returned {tuple(output.shape)} for tokens {tuple(unfolded.shape)}: several draws "
                "at once need `with draws(number)` around the converted network"
            )
        return output if number is None else output.flatten(0, 1)

    def format_output(self, attended: Tensor) -> Outputs:
        """Return the output in the original layer's form, with None for attention weights and other outputs."""
        return attended if self.num_outputs is None else (attended, *[None] * (self.num_outputs - 1))

    def reject_options(self, options: dict[str, Any]) -> None:
        """Raise a ValueError for any option that is set, except :data:`IGNORED_OPTIONS`."""
        for name, option in options.items():
            if name not in IGNORED_OPTIONS and option is not None and option is not False:
                self.reject(name, "layers of this library do not support it")

    def reject(self, argument: str, reason: str) -> None:
        """Raise a ValueError that names the layer."""
        raise ValueError(f"{self.layer.label} got {argument}: {reason}; leave it out of replace_attention's layers")


class MultiheadAttentionAdapter(Adapter):
    """Replacement for ``nn.MultiheadAttention``.

    Args:
        layer, num_outputs: as for :class:`Adapter`.
        batch_first: as for ``nn.MultiheadAttention``.
    """

    # Read by the fast paths of nn.TransformerEncoder and its layers; these values disable them.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, layer: ProbabilisticAttention, *, num_outputs: int | None, batch_first: bool) -> None:
        super().__init__(layer, num_outputs=num_outputs)
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
        """Attend over the real tokens of a sequence; arguments are those of ``nn.MultiheadAttention``.

        Raises:
            ValueError: cross-attention, or a mask of anything but padding.
        """
        if any(each is not query and not torch.equal(each, query) for each in (key, value)):
            self.reject("a query that is not key and value", "cross-attention has no counterpart")
        if attn_mask is not None or is_causal:
            self.reject("attn_mask or is_causal", "it attends over all real tokens")
        mask = key_padding_mask
        if mask is not None:
            mask = masks.visible(mask) if mask.is_floating_point() else ~mask
        if self.batch_first:
            return self.format_output(self.attend(query, mask))
        return self.format_output(self.attend(query.transpose(0, 1), mask).transpose(0, 1))


class TimmAdapter(Adapter):
    """Base class for timm's attention, which applies dropout to its output.

    Args:
        layer, num_outputs: as for :class:`Adapter`.
        proj_drop: dropout of the output.
    """

    def __init__(self, layer: ProbabilisticAttention, *, num_outputs: int | None, proj_drop: nn.Module) -> None:
        super().__init__(layer, num_outputs=num_outputs)
        self.proj_drop = proj_drop


class FusedQKVAdapter(TimmAdapter):
    """Replacement for timm's attention with one linear map ``qkv`` for query, key and value."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Outputs:
        """Attend over the real tokens of x ``(batch, tokens, dim)``, by a mask ``(batch, 1, queries, tokens)``.

        Raises:
            ValueError: a mask of anything but padding, or any other option that is set, such as is_causal or rope.
        """
        self.reject_options(options)
        return self.format_output(self.proj_drop(self.attend(x, masks.key_mask(attn_mask, x))))


class ClassAttentionAdapter(TimmAdapter):
    """Replacement for timm's class attention, as in CaiT: the first token attends over all tokens."""

    def forward(self, x: Tensor) -> Outputs:
        """Attend over x ``(batch, tokens, dim)`` and return the first token's output ``(batch, 1, dim)``."""
        return self.format_output(self.proj_drop(self.attend(x, None)[:, :1]))


class SeparateQKVAdapter(Adapter):
    """Replacement for Hugging Face attention, which has separate linear maps for query, key and value."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *rest: Any, **options: Any
    ) -> Outputs:
        """Attend over the real tokens ``(batch, tokens, dim)``; arguments are those of transformers 4 and 5.

        Raises:
            ValueError: a mask of anything but padding, or any other option that is set, such as is_causal, a cache,
                encoder_hidden_states or a bias of the scores.
        """
        self.reject_options(options)
        if any(argument is not None and argument is not False for argument in rest):
            found = "more positional arguments than tokens and mask"
            self.reject(found, "head masks, caches and position biases have no counterpart")
        return self.format_output(self.attend(hidden_states, masks.key_mask(attention_mask, hidden_states)))
