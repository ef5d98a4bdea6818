"""Conversion of other libraries' attention masks to token masks: True at real tokens."""

from torch import Tensor

from probattn.functional import errors


def visible(mask: Tensor) -> Tensor:
    """Convert a mask to boolean: True where it is True, a non-zero integer, or adds 0 to the scores.

    Args:
        mask: boolean, integer, or additive: 0 for visible, −10⁴ or less for hidden.

    Raises:
        ValueError: an additive mask with other values, which is a bias of the scores.
    """
    if not mask.is_floating_point():
        return mask != 0
    is_zero = mask == 0
    _refuse(~(is_zero | (mask <= -1e4)), "adds numbers other than 0 and −∞ to the scores (a relative position bias, …)")
    return is_zero


def key_mask(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """Convert a mask of query-key pairs to the equivalent token mask ``(batch, tokens)``; None stays None.

    Args:
        mask: ``(batch, 1, queries, keys)`` in a form that :func:`visible` takes, where sizes of 1 broadcast, or
            ``(batch, keys)``.
        x: the tokens ``(batch, tokens, dim)``.

    Raises:
        ValueError: another shape, or a mask that differs between queries or heads.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dim() not in (2, 4) or mask.shape[-1] != x.shape[1]:
        raise ValueError(
            f"an attention mask of {x.shape[1]} tokens must be (batch, tokens) or (batch, 1, queries, tokens), got "
            f"{tuple(getattr(mask, 'shape', ())) or type(mask).__name__}; a Hugging Face model needs "
            'attn_implementation "sdpa" or "eager"'
        )
    keys = visible(mask)
    if mask.dim() == 4:
        _refuse(keys != keys[:, :1, :1], "differs between queries or heads (causal, windowed, …)")
        keys = keys[:, 0, 0]
    return keys.expand(x.shape[:2])


def _refuse(failed: Tensor, feature: str) -> None:
    def error(rows: list[int]) -> ValueError:
        return ValueError(
            f"this attention mask {feature}, which layers of this library do not support: leave the layer out of "
            "replace_attention's layers"
        )

    errors.refuse(failed, error)
