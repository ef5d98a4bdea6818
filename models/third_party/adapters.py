"""Adapters that give a layer of this library the call signature of another library's attention layer."""

from typing import Any

import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.draws import num_folded
from probattn.models.third_party import masks

Outputs = Tensor | tuple[Tensor | None, ...]

IGNORED_OPTIONS = ("output_attentions", "cache_position", "need_weights", "average_attn_weights")
"""Options of other libraries' attention layers that do not change their first output: caches are refused."""


class Adapter(nn.Module):
    """Layer of this library, on plain batches, in the place of another library's attention.

    Args:
        layer: the layer.
        original: the module that it replaces, of which it keeps the layout and the dropout of the output.
        num_outputs: length of the tuple that the original returned; None if it returned a tensor.
    """

    def __init__(self, layer: ProbabilisticAttention, original: nn.Module, *, num_outputs: int | None = None) -> None:
        super().__init__()
        self.layer, self.num_outputs = layer, num_outputs
        self.batch_first = getattr(original, "batch_first", True)
        self.proj_drop = getattr(original, "proj_drop", nn.Identity())

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Apply the layer; draws folded into the batch are unfolded around it.

        Args:
            x: ``(batch, tokens, dim)``, or ``(S · batch, tokens, dim)`` with draws folded into the batch.
            mask: ``(batch, tokens)`` or ``(S · batch, tokens)``, True at real tokens; the same in all draws.

        Raises:
            ValueError: x is not a batch of sequences; the layer returns several draws outside ``draws(S)``.
        """
        if x.dim() != 3:
            raise ValueError(f"{self.layer.label} takes tokens (batch, tokens, dim) here, got {tuple(x.shape)}")
        number = num_folded()
        unfolded = x if number is None else x.unflatten(0, (number, -1))
        output = self.layer(unfolded, None if mask is None else mask[: unfolded.shape[-3]])
        if output.shape != unfolded.shape:
            raise ValueError(
                f"{self.layer.label} returned {tuple(output.shape)} for tokens {tuple(unfolded.shape)}: several draws "
                "at once need `with draws(number)` around the converted network"
            )
        return output if number is None else output.flatten(0, 1)

    def in_original_form(self, attended: Tensor) -> Outputs:
        """Return the output as the original did, with None for attention weights and other outputs."""
        return attended if self.num_outputs is None else (attended, *[None] * (self.num_outputs - 1))

    def reject_options(self, **options: Any) -> None:
        """Raise a ValueError for any option that is set, except :data:`IGNORED_OPTIONS`."""
        for name, option in options.items():
            if name not in IGNORED_OPTIONS and option is not None and option is not False:
                raise ValueError(
                    f"{self.layer.label} got {name}, which layers of this library do not support: leave it out of "
                    "replace_attention's layers"
                )


class MultiheadAttentionAdapter(Adapter):
    """Replacement for ``nn.MultiheadAttention``."""

    # Read by the fast paths of nn.TransformerEncoder and its layers; these values disable them.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, **options: Any
    ) -> Outputs:
        """Attend over the real tokens of a sequence; arguments are those of ``nn.MultiheadAttention``.

        Raises:
            ValueError: cross-attention, or a mask of anything but padding.
        """
        is_cross = any(tokens is not query and not torch.equal(tokens, query) for tokens in (key, value))
        self.reject_options(**options, **{"cross-attention": is_cross})
        if key_padding_mask is not None:
            is_added = key_padding_mask.is_floating_point()
            key_padding_mask = masks.visible(key_padding_mask) if is_added else ~key_padding_mask
        turned = (lambda x: x) if self.batch_first else (lambda x: x.transpose(0, 1))
        return self.in_original_form(turned(self.attend(turned(query), key_padding_mask)))


class TokenAdapter(Adapter):
    """Replacement for the attention of timm and of Hugging Face encoders."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *others: Any,
        attn_mask: Tensor | None = None,
        **options: Any,
    ) -> Outputs:
        """Attend over the real tokens ``(batch, tokens, dim)``.

        The mask is called ``attention_mask`` by Hugging Face and ``attn_mask`` by timm.

        Raises:
            ValueError: a mask of anything but padding, or any other argument that is set, such as is_causal, rope, a
                cache, encoder_hidden_states or a bias of the scores.
        """
        self.reject_options(**options, **{f"argument {i}": other for i, other in enumerate(others, 3)})
        mask = masks.key_mask(attention_mask if attn_mask is None else attn_mask, hidden_states)
        return self.in_original_form(self.proj_drop(self.attend(hidden_states, mask)))


class ClassAttentionAdapter(TokenAdapter):
    """Replacement for timm's class attention, as in CaiT: the first token attends over all tokens."""

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the first token's output ``(batch, 1, dim)``."""
        return super().attend(x, mask)[:, :1]
