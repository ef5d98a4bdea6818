"""Adapters that give a layer of this library the call signature of another library's attention
layer."""

from typing import Any

import torch
from torch import Tensor, nn

from probattn import ProbabilisticAttention
from probattn.draws import num_folded
from probattn.functional import errors

Outputs = Tensor | tuple[Tensor | None, ...]

IGNORED_OPTIONS = ("output_attentions", "cache_position", "need_weights", "average_attn_weights")
"""Options of other libraries' attention layers that do not change their first output: caches are
refused."""


class Adapter(nn.Module):
    """Layer of this library, on plain batches, in the place of another library's attention.

    Args:
        layer: the layer.
        original: the module that it replaces, of which it keeps the layout and the dropout of the
            output.
        num_outputs: length of the tuple that the original returned; None if it returned a tensor.
    """

    def __init__(
        self, layer: ProbabilisticAttention, original: nn.Module, *, num_outputs: int | None = None
    ) -> None:
        super().__init__()
        self.layer = layer
        self.num_outputs = num_outputs
        self.batch_first = getattr(original, "batch_first", True)
        self.proj_drop = getattr(original, "proj_drop", nn.Identity())

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *others: Any,
        **options: Any,
    ) -> Outputs:
        """Attend over the real tokens ``(batch, tokens, dim)``; the call is that of timm and of
        Hugging Face encoders.

        The mask is called ``attention_mask`` by Hugging Face and ``attn_mask`` by timm.

        Raises:
            ValueError: a mask of anything but padding, or any other argument that is set, such as
                is_causal, rope, a cache, encoder_hidden_states or a bias of the scores.
        """
        mask = options.pop("attn_mask", attention_mask)
        self.reject_options(
            **options, **{f"argument {i}": argument for i, argument in enumerate(others, 3)}
        )
        return self.as_original(self.attend(hidden_states, mask))

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Apply the layer; draws folded into the batch are unfolded around it.

        Args:
            x: tokens in the layout of the original, where the batch may be ``S · batch`` with draws
                folded into it.
            mask: as for :func:`token_mask`; the same in all draws.

        Raises:
            ValueError: the layer returns several draws outside ``draws(S)``.
        """
        x = x if self.batch_first else x.transpose(0, 1)
        number = num_folded()
        mask = None if mask is None else token_mask(mask, x)
        unfolded = x if number is None else x.unflatten(0, (number, -1))
        output = self.layer(unfolded, None if mask is None else mask[: unfolded.shape[-3]])
        if output.shape != unfolded.shape:
            raise ValueError(
                f"{self.layer.label}: several draws at once need `with draws(number)` around the "
                "network"
            )
        output = self.proj_drop(output.reshape(x.shape))
        return output if self.batch_first else output.transpose(0, 1)

    def as_original(self, output: Tensor) -> Outputs:
        """Return an output in the form of the original's, with None for attention weights and other
        outputs."""
        return output if self.num_outputs is None else (output, *[None] * (self.num_outputs - 1))

    def reject_options(self, **options: Any) -> None:
        """Raise a ValueError for any option that is set, except :data:`IGNORED_OPTIONS`."""
        for name, option in options.items():
            if name not in IGNORED_OPTIONS and option is not None and option is not False:
                raise _unsupported(f"{self.layer.label} got {name}")


class ClassAttentionAdapter(Adapter):
    """Replacement for timm's class attention, as in CaiT: the first token attends over all
    tokens."""

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the first token's output ``(batch, 1, dim)``."""
        return super().attend(x, mask)[:, :1]


class MultiheadAttentionAdapter(Adapter):
    """Replacement for ``nn.MultiheadAttention``."""

    # Read by the fast paths of nn.TransformerEncoder and its layers; these values disable them.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def forward(  # type: ignore[override]  # the call is that of nn.MultiheadAttention
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        **options: Any,
    ) -> Outputs:
        """Attend over the real tokens of a sequence; arguments are those of
        ``nn.MultiheadAttention``.

        Raises:
            ValueError: cross-attention, or a mask of anything but padding.
        """
        is_cross = any(
            tokens is not query and not torch.equal(tokens, query) for tokens in (key, value)
        )
        self.reject_options(**options, **{"cross-attention": is_cross})
        if key_padding_mask is not None and key_padding_mask.dtype == torch.bool:
            key_padding_mask = ~key_padding_mask
        return self.as_original(self.attend(query, key_padding_mask))


def token_mask(mask: Tensor, x: Tensor) -> Tensor:
    """Convert another library's attention mask to ``(batch, tokens)``, True at real tokens.

    Args:
        mask: ``(batch, tokens)``, or ``(batch, heads, queries, keys)`` where sizes of 1 broadcast.
            Boolean or integer, true where a token is visible; or added to the scores, 0 where it is
            visible and −10⁴ or less elsewhere.
        x: the tokens ``(batch, tokens, dim)``.

    Raises:
        ValueError: a mask that differs between queries or heads, or adds other numbers.
    """
    visible = mask != 0
    if mask.is_floating_point():
        visible = ~visible
        if errors.is_any(~(visible | (mask <= -1e4))):
            feature = "adds numbers other than 0 and −∞ to the scores (a relative position bias, …)"
            raise _unsupported(f"this attention mask {feature}")
    if mask.dim() == 4:
        if errors.is_any(visible != visible[:, :1, :1]):
            feature = "differs between queries or heads (causal, windowed, …)"
            raise _unsupported(f"this attention mask {feature}")
        visible = visible[:, 0, 0]
    return visible.expand(x.shape[:2])


def _unsupported(what: str) -> ValueError:
    return ValueError(
        f"{what}, which layers of this library lack: leave the layer out of replace_attention's "
        "layers"
    )
