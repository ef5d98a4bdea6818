"""How a network of another library is called on a batch."""

from typing import Any

from torch import Tensor, nn


def call(network: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """The output of a network, which starts with the batch as x does.

    A ``nn.TransformerEncoder`` (or a layer of one) gets x with its batch where it wants it, and the mask as
    ``src_key_padding_mask``; a Hugging Face model its main input and ``attention_mask``, and of what it returns the
    logits are taken, or the first tensor. Any other network is called as ``network(x)`` or ``network(x, mask)``.

    Args:
        network: the network.
        x: ``(batch, ...)``.
        mask: ``(batch, tokens)``, True where there is a token.
    """
    if isinstance(network, (nn.TransformerEncoder, nn.TransformerEncoderLayer)):
        return _encoder(network, x, mask)
    name = getattr(network, "main_input_name", None)
    if isinstance(name, str) and hasattr(network, "config"):
        masked = {} if mask is None else {"attention_mask": mask.long()}
        return _tensor(network(**{name: x}, **masked))
    return _tensor(network(x) if mask is None else network(x, mask))


def _encoder(network: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    first = network.layers[0] if isinstance(network, nn.TransformerEncoder) else network
    padding = None if mask is None else ~mask
    if first.self_attn.batch_first:
        return network(x, src_key_padding_mask=padding)
    return network(x.transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)


def _tensor(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    parts = output.values() if hasattr(output, "values") else output
    return next(part for part in parts if isinstance(part, Tensor))
