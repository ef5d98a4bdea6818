"""Replacement of the attention layers of an existing network."""

import copy
import operator
from collections.abc import Sequence
from typing import Literal

from torch import nn

from probattn.attention.base import LayerFactory
from probattn.models.layer_factories import layer_factory
from probattn.models.third_party.adapters import Adapter
from probattn.models.third_party.build_layer import build_layer
from probattn.models.third_party.converted_network import ConvertedNetwork
from probattn.models.third_party.equivalence import check_softmax_attention
from probattn.models.third_party.find_attention import AttentionParts, find_attention
from probattn.models.third_party.obstacles import describe_unrecognised, name_layer

ALTERNATIVE = (
    "add a transformer block after the network and replace its attention (see “Your own network” in the documentation)"
)
"""Advice where attention cannot be replaced."""


def replace_attention(
    network: nn.Module,
    *,
    attention: str | LayerFactory,
    layers: Literal["last", "all"] | Sequence[int] = "last",
    freeze_rest: bool = False,
) -> ConvertedNetwork:
    """Return a copy of a network in which layers of this library replace some or all attention layers.

    Supported are networks with ``nn.MultiheadAttention`` (torchvision's ViTs, ``nn.TransformerEncoder``), timm's ViTs,
    and Hugging Face encoders such as BERT, DistilBERT and ViT; the documentation has a table. Each new layer is
    initialised with the old one's query, key, value and output weights where it has counterparts; with
    ``SoftmaxAttention`` the outputs stay the same. All other weights are kept.

    >>> converted = replace_attention(vit_b_16(), attention=KEPSVGPAttention.partial(rank=8))  # doctest: +SKIP

    Args:
        network: the network, which is not changed; for how it is called see :func:`call_network
            <probattn.models.third_party.call_network.call_network>`.
        attention: name, class or factory ``(dim, heads) -> layer`` of the new layers (see :func:`layer_factory
            <probattn.models.layer_factories.layer_factory>`). A ``bias`` or ``dropout`` parameter that it
            leaves open is set as in the old layer.
        layers: ``"last"``, ``"all"``, or indices in order of definition, negative ones from the end.
        freeze_rest: train only the new layers; the running statistics of batch norms elsewhere do not change, either.

    Returns:
        ``converted(x, mask=None)``, which supports draws like networks of this library.

    Raises:
        ValueError: no attention found, or indices out of range; attention without a counterpart: masks of anything but
            padding, cross-attention, decoders, rotary embeddings, position biases, talking heads, norms of queries and
            keys, added tokens; a factory that does not return a layer of this library.
    """
    factory = layer_factory(attention)
    copied = copy.deepcopy(network.wrapped if isinstance(network, ConvertedNetwork) else network)
    found = list(find_attention(copied))
    if not found:
        raise ValueError(f"no attention found that can be replaced: {describe_unrecognised(copied)}; {ALTERNATIVE}")
    for path, read in (found[index] for index in _indices(layers, len(found))):
        try:
            old = read()
            num_outputs = check_softmax_attention(copied.get_submodule(path))
        except ValueError as error:
            raise ValueError(
                f"the attention at {name_layer(copied, path)} cannot be replaced: {error}; leave it out of layers, or "
                f"{ALTERNATIVE}"
            ) from None
        _insert(copied, path, old, old.adapter(build_layer(factory, old), num_outputs=num_outputs))
    converted = ConvertedNetwork(copied)
    if freeze_rest:
        converted.freeze_rest()
    return converted


def _indices(layers: str | Sequence[int], count: int) -> list[int]:
    """Return the indices of the layers, ascending."""
    if isinstance(layers, str) and layers in ("last", "all"):
        return [count - 1] if layers == "last" else list(range(count))
    if isinstance(layers, (str, int)) or len(layers) == 0:
        raise ValueError(f'layers must be "last", "all" or a sequence of indices, got {layers!r}')
    indices = [operator.index(index) for index in layers]
    beyond = [index for index in indices if not -count <= index < count]
    if beyond:
        raise ValueError(f"layers {beyond} are out of range: this network has {count} attention layers")
    return sorted({index % count for index in indices})


def _insert(network: nn.Module, path: str, old: AttentionParts, adapter: Adapter) -> None:
    """Replace an old layer."""
    target = ".".join(part for part in (path, old.inner) if part)
    replaced = network.get_submodule(target)
    paths = [name for name, module in network.named_modules(remove_duplicate=False) if module is replaced]
    if not target or len(paths) > 1:
        reason = (
            f"is shared by {', '.join(paths)}" if target else "is the network itself: use a layer of probattn instead"
        )
        raise ValueError(f"the attention at {path!r} {reason}")
    adapter.training = replaced.training
    adapter.layer.train(replaced.training)
    if old.emptied:
        network.get_submodule(path).set_submodule(old.emptied, nn.Identity())
    network.set_submodule(target, adapter)
    for encoder in network.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            encoder.use_nested_tensor = False
