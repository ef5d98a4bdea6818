"""Conversion of other libraries' attention masks to token masks: True at real tokens."""

from torch import Tensor

from probattn.functional import errors


def visible(mask: Tensor) -> Tensor:
    """Convert a mask to boolean: True where it is True, a non-zero integer, or adds 0 to the scores.

    Args:
        mask: boolean, integer, or additive: 0 for visible, −10⁴ or less for hidden.

    Returns:
        A boolean tensor of the same shape.

    Raises:
        ValueError: an additive mask with other values, which is a bias of the scores.
    """
    if not mask.is_floating_point():
        return mask != 0
    is_zero = mask == 0
    errors.refuse(
        ~(is_zero | (mask <= -1e4)),
        lambda _: ValueError(
            "this attention mask adds numbers other than 0 and −∞ to the scores, such as a relative position bias, "
            "which layers of this library do not support: leave the layer out of replace_attention's layers"
        ),
    )
    return is_zero


def key_mask(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """Convert a mask of query-key pairs to the equivalent token mask.

    Args:
        mask: ``(batch, 1, queries, keys)`` in a form that :func:`visible` takes, where sizes of 1 broadcast, or
            ``(batch, keys)``, or None.
        x: the tokens ``(batch, tokens, dim)``.

    Returns:
        ``(batch, tokens)``, or None.

    Raises:
        ValueError: another shape, or a mask that differs between queries or heads.
    """
    if mask is None:
        return None
    rows, tokens = x.shape[:2]
    if not isinstance(mask, Tensor) or mask.dim() not in (2, 4) or mask.shape[-1] != tokens:
        found = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"an attention mask of {tokens} tokens must be a tensor (batch, {tokens}) or (batch, 1, queries, {tokens})"
            f', got {found}; of a Hugging Face model, set attn_implementation to "sdpa" or "eager"'
        )
    keys = visible(mask)
    if mask.dim() == 4:
        pairs, keys = keys, keys[:, 0, 0]
        errors.refuse(
            pairs != keys[:, None, None],
            lambda _: ValueError(
                "this attention mask differs between queries or heads (causal, windowed, …), and layers of this "
                "library attend over all real tokens: leave the layer out of replace_attention's layers"
            ),
        )
    return keys.expand(rows, tokens)
