"""Other libraries' attention masks as the masks of this one: True where there is a token."""

from torch import Tensor

from probattn.functional import errors


def shown(mask: Tensor) -> Tensor:
    """Where a mask lets tokens be seen: True, a non-zero integer, or a summand of 0 to the scores.

    Args:
        mask: boolean, integer, or floating: 0 or a number so low that it hides, −10⁴ or less.

    Returns:
        A boolean tensor of that shape.

    Raises:
        ValueError: summands in between, which say more than which tokens there are.
    """
    if not mask.is_floating_point():
        return mask != 0
    visible = mask == 0
    errors.refuse(
        ~(visible | (mask <= -1e4)),
        lambda _: ValueError(
            "this attention mask adds numbers other than 0 and −∞ to the scores: layers of this library have no scores "
            "to add a bias to; leave such layers as they are"
        ),
    )
    return visible


def of_keys(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """The mask of tokens that a mask of query-key pairs amounts to.

    Args:
        mask: ``(batch, 1, queries, keys)`` in a form that :func:`shown` takes, where sizes of 1 broadcast, or
            ``(batch, keys)``, or None.
        x: the tokens ``(batch, tokens, dim)``.

    Returns:
        ``(batch, tokens)``, or None.

    Raises:
        ValueError: another shape; pairs that are hidden in some queries or heads and not in others.
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
    visible = shown(mask)
    if mask.dim() == 4:
        pairs, visible = visible, visible[:, 0, 0]
        errors.refuse(
            pairs != visible[:, None, None],
            lambda _: ValueError(
                "this attention mask differs between queries or heads (causal, windowed, …): layers of this library "
                "attend over all real tokens; leave such layers as they are"
            ),
        )
    return visible.expand(rows, tokens)
