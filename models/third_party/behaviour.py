"""Whether a module that looks like attention does what attention does, and in which form it gives it."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from probattn.attention.softmax import SoftmaxAttention
from probattn.models.third_party.recognise import find
from probattn.models.third_party.weights import build


@torch.no_grad()
def check_behaviour(module: nn.Module) -> int | None:
    """Refuses a module whose output is not the softmax attention of its maps, on a few tokens in evaluation mode.

    A structure does not show windows, rotations, other scales or attention between channels; and weights at zero, as
    those of an output map often are at first, would hide them. So a copy is looked at, whose weights are drawn anew.

    Args:
        module: attention that :func:`find` has found.

    Returns:
        How many outputs what is to be replaced gives, in a tuple; None if it gives a tensor.

    Raises:
        ValueError: another output, or a module that cannot be called on tokens alone.
    """
    probe, generator = copy.deepcopy(module).eval(), torch.Generator().manual_seed(0)
    for parameter in probe.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1:].numel() ** 0.5)
    _, read = next(find(probe))
    old = read()
    weight = old.query.weight
    x = torch.randn(2, 5, weight.shape[1], generator=generator).to(weight)
    x = (x,) * (3 if isinstance(module, nn.MultiheadAttention) else 1)
    try:
        theirs = probe.get_submodule(old.inner)(*x)
    except Exception as error:  # whatever a foreign module raises
        raise ValueError(f"it cannot be called on tokens alone: {type(error).__name__}: {error}") from error
    outputs = _count(theirs)
    theirs = theirs if outputs is None else theirs[0]
    if old.emptied:
        theirs = probe.get_submodule(old.emptied)(theirs)
    expected = old.adapt(build(SoftmaxAttention, old), outputs=None).eval()(*x)
    eps = max(torch.finfo(dtype).eps for dtype in (weight.dtype, torch.float32))  # some compute scores in float32
    tolerance = eps**0.5 * expected.abs().max()
    if theirs.shape != expected.shape or (theirs - expected).abs().max() > tolerance:
        raise ValueError("its output is not the softmax attention of its maps with scale 1/√(head width)")
    return outputs


def _count(output: Any) -> int | None:
    """How many outputs there are, None for a tensor."""
    if isinstance(output, Tensor):
        return None
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return len(output)
    raise ValueError(f"it gives a {type(output).__name__}, and neither a tensor nor a tuple that starts with one")
