"""What stands where other libraries' attention layers stood: their call outside, a layer of this library inside."""

from typing import Any

from pyro.nn import PyroModule
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.handlers import num_folded
from probattn.models.foreign import masks

ELSEWHERE = (
    "head_mask",
    "encoder_hidden_states",
    "key_value_states",
    "past_key_value",
    "past_key_values",
    "position_embeddings",
    "position_bias",
    "relative_position_bias",
)
"""Arguments of Hugging Face attention that change it in a way that layers of this library have no counterpart for."""


class Adapter(PyroModule):
    """A layer that takes draws on the left where a network knows only its batch.

    Args:
        layer: the layer.
    """

    batch_first = True

    def __init__(self, layer: ProbabilisticAttention) -> None:
        super().__init__()
        self.layer = layer

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The layer's output; draws that are folded into the batch are unfolded for the layer.

        Args:
            x: ``(batch, tokens, dim)``, or ``(S · batch, tokens, dim)`` inside :class:`~probattn.handlers.folded`.
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

    def refuse(self, what: str, why: str) -> None:
        """Raises a ValueError that names the layer."""
        raise ValueError(f"{self.layer.label} got {what}: {why}; leave this layer as it is")


class MultiheadAdapter(Adapter):
    """In the place of ``nn.MultiheadAttention``; it gives no attention weights.

    Args:
        layer: the layer.
        batch_first: as of the old layer.
    """

    # The fused paths of nn.TransformerEncoder and its layers read these, and are not taken.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, layer: ProbabilisticAttention, *, batch_first: bool) -> None:
        super().__init__(layer)
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
    ) -> tuple[Tensor, None]:
        """Attends over the real tokens of a sequence; the arguments are those of ``nn.MultiheadAttention``.

        Raises:
            ValueError: cross-attention, or a mask of more than padding.
        """
        if key is not query or value is not query:
            self.refuse("a query that is not key and value", "cross-attention has no counterpart")
        if attn_mask is not None or is_causal:
            self.refuse("attn_mask or is_causal", "it attends over all real tokens")
        mask = key_padding_mask
        if mask is not None:
            mask = masks.shown(mask) if mask.is_floating_point() else ~mask
        if self.batch_first:
            return self.attend(query, mask), None
        return self.attend(query.transpose(0, 1), mask).transpose(0, 1), None


class JointAdapter(Adapter):
    """In the place of timm's attention, whose query, key and value are one map ``qkv``.

    Args:
        layer: the layer.
        after: what the output passes through at last, dropout.
    """

    def __init__(self, layer: ProbabilisticAttention, *, after: nn.Module) -> None:
        super().__init__(layer)
        self.after = after

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
        """Attends over the real tokens ``(batch, tokens, dim)`` that a mask ``(batch, 1, queries, tokens)`` shows.

        Raises:
            ValueError: a mask of more than padding, or any other option that is set, such as is_causal or rope.
        """
        for name, option in options.items():
            if option is not None and option is not False:
                self.refuse(name, "it has no counterpart")
        return self.after(self.attend(x, masks.of_keys(attn_mask, x)))


class SeparateAdapter(Adapter):
    """In the place of Hugging Face attention with maps of its own for query, key and value; it gives no weights."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *rest: Any, **options: Any
    ) -> tuple[Tensor, None]:
        """Attends over the real tokens ``(batch, tokens, dim)``; arguments are those of transformers 4 and 5.

        Raises:
            ValueError: a mask of more than padding, cross-attention, a cache, or a bias of the scores.
        """
        for name in ELSEWHERE:
            if options.get(name) is not None:
                self.refuse(name, "it has no counterpart")
        if any(argument is not None and not isinstance(argument, bool) for argument in rest):
            self.refuse("more positional arguments than tokens and mask", "head masks and caches have no counterpart")
        return self.attend(hidden_states, masks.of_keys(attention_mask, hidden_states)), None
