"""Numerical check that a module computes softmax attention."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from probattn.attention.softmax import SoftmaxAttention
from probattn.models.third_party.build_layer import build_layer
from probattn.models.third_party.find_attention import find_attention


@torch.no_grad()
def check_softmax_attention(module: nn.Module) -> int | None:
    """Compare a module with softmax attention that has its weights, on a few tokens in evaluation mode.

    A module's structure does not show windows, rotary embeddings, other scales or attention between channels. The check
    runs on a copy with random weights, since weights of zero (a common initialisation of output maps) would hide them.

    Args:
        module: attention found by :func:`find_attention`.

    Returns:
        Length of the tuple that the layer to be replaced returns; None if it returns a tensor.

    Raises:
        ValueError: a different output, or a module that cannot be called on tokens alone.
    """
    probe, generator = copy.deepcopy(module).eval(), torch.Generator().manual_seed(0)
    for parameter in probe.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1:].numel() ** 0.5)
    _, read = next(find_attention(probe))
    old = read()
    weight = old.query.weight
    x = torch.randn(2, 5, weight.shape[1], generator=generator).to(weight)
    x = (x,) * (3 if isinstance(module, nn.MultiheadAttention) else 1)
    try:
        actual = probe.get_submodule(old.inner)(*x)
    except Exception as error:  # a third-party module may raise anything
        raise ValueError(f"it cannot be called on tokens alone: {type(error).__name__}: {error}") from error
    num_outputs = _count_outputs(actual)
    actual = actual if num_outputs is None else actual[0]
    if old.emptied:
        actual = probe.get_submodule(old.emptied)(actual)
    expected = old.adapter(build_layer(SoftmaxAttention, old), num_outputs=None).eval()(*x)
    eps = max(torch.finfo(dtype).eps for dtype in (weight.dtype, torch.float32))  # some compute scores in float32
    tolerance = eps**0.5 * expected.abs().max()
    if actual.shape != expected.shape or (actual - expected).abs().max() > tolerance:
        raise ValueError("its output is not the softmax attention of its linear maps with scale 1/√(head width)")
    return num_outputs


def _count_outputs(output: Any) -> int | None:
    """Return the length of a tuple of outputs, None for a tensor."""
    if isinstance(output, Tensor):
        return None
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return len(output)
    raise ValueError(f"it returns a {type(output).__name__}, neither a tensor nor a tuple that starts with one")
