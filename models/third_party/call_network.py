"""Calls of networks of several libraries by one signature ``(x, mask)``."""

from typing import Any

from torch import Tensor, nn


def call_network(network: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the output of a network, batch first.

    An ``nn.TransformerEncoder`` (or one of its layers) gets x in the layout of its ``batch_first`` and the mask as
    ``src_key_padding_mask``. A Hugging Face model gets x as its main input and the mask as ``attention_mask``; its
    output is the logits, or else the first tensor. Any other network gets ``(x)`` or ``(x, mask)``.

    Args:
        network: the network.
        x: ``(batch, ...)``.
        mask: ``(batch, tokens)``, True at real tokens, or None.
    """
    if isinstance(network, (nn.TransformerEncoder, nn.TransformerEncoderLayer)):
        return _call_encoder(network, x, mask)
    name = getattr(network, "main_input_name", None)
    if isinstance(name, str) and hasattr(network, "config"):
        masked = {} if mask is None else {"attention_mask": mask.long()}
        return _first_tensor(network(**{name: x}, **masked))
    return _first_tensor(network(x) if mask is None else network(x, mask))


def _call_encoder(network: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    first = network.layers[0] if isinstance(network, nn.TransformerEncoder) else network
    padding = None if mask is None else ~mask
    if first.self_attn.batch_first:
        return network(x, src_key_padding_mask=padding)
    return network(x.transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)


def _first_tensor(output: Any) -> Tensor:
    """Return the logits, or else the first tensor of an output."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    parts = output.values() if hasattr(output, "values") else output
    return next(part for part in parts if isinstance(part, Tensor))
