"""Replacement of the attention layers of an existing network."""

import copy
from collections.abc import Sequence
from typing import Literal

from torch import nn

from probattn.attention.base import LayerFactory
from probattn.models.layer_factories import layer_factory
from probattn.models.third_party.attention_kinds import KINDS, find_attention, read_attention
from probattn.models.third_party.build_layer import build_layer, check_softmax_attention
from probattn.models.third_party.converted_network import ConvertedNetwork

ALTERNATIVE = "add a transformer block after the network and replace its attention"
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
            <probattn.models.third_party.converted_network.call_network>`.
        attention: name, class or factory ``(dim, heads) -> layer`` of the new layers (see :func:`layer_factory
            <probattn.models.layer_factories.layer_factory>`). A ``bias`` or ``dropout`` parameter that it
            leaves open is set as in the old layer.
        layers: ``"last"``, ``"all"``, or indices in order of definition, negative ones from the end; attention of
            unknown kinds does not count.
        freeze_rest: train only the new layers; the running statistics of batch norms elsewhere do not change, either.

    Returns:
        ``converted(x, mask=None)``, which supports draws like networks of this library.

    Raises:
        ValueError: no attention of a known kind, or indices out of range; ``"all"`` with attention of unknown kinds;
            attention that is not softmax attention over all tokens; a factory that does not return a layer of this
            library.
    """
    factory = layer_factory(attention)
    copied = copy.deepcopy(network.wrapped if isinstance(network, ConvertedNetwork) else network)
    located = list(find_attention(copied))
    known = [path for path, is_known in located if is_known]
    unknown = [_describe(copied, path) for path, is_known in located if not is_known]
    if not known or (unknown and isinstance(layers, str) and layers == "all"):
        raise ValueError(
            f"attention that can be replaced is {', '.join(sorted({name for _, name in KINDS}))}; this network has "
            f"{', '.join(unknown[:3]) or 'none'}: choose other layers by index, or {ALTERNATIVE}"
        )
    for path in (known[index] for index in _indices(layers, len(known))):
        name = _describe(copied, path)
        try:
            _replace(copied, path, factory)
        except Exception as error:  # a third-party module may raise anything
            raise ValueError(f"{name} cannot be replaced: {error}; leave it out of layers, or {ALTERNATIVE}") from error
    converted = ConvertedNetwork(copied)
    if freeze_rest:
        converted.freeze_rest()
    return converted


def _describe(network: nn.Module, path: str) -> str:
    kind = type(network.get_submodule(path))
    return f"{path!r} ({kind.__module__}.{kind.__name__})"


def _indices(layers: str | Sequence[int], count: int) -> list[int]:
    """Return the indices of the layers, ascending."""
    named = {"last": range(count - 1, count), "all": range(count)}
    indices = named[layers] if isinstance(layers, str) else list(layers)
    if len(indices) == 0 or min(indices) < -count or max(indices) >= count:
        raise ValueError(f"layers={layers!r} is out of range: this network has {count} attention layers")
    return sorted({range(count)[index] for index in indices})


def _replace(network: nn.Module, path: str, factory: LayerFactory) -> None:
    """Replace an attention layer in place."""
    module = network.get_submodule(path)
    num_outputs = check_softmax_attention(module)
    old = read_attention(module)
    replaced = module.get_submodule(old.layout.inner)
    paths = [name for name, part in network.named_modules(remove_duplicate=False) if part is replaced]
    if paths == [""] or len(paths) > 1:
        raise ValueError(f"it is the network itself, or shared by several blocks: {paths}")
    adapter = old.layout.adapter(build_layer(factory, old), replaced, num_outputs=num_outputs)
    adapter.training = replaced.training
    adapter.layer.train(replaced.training)
    if old.layout.inner:  # the output map is in the new layer
        module.set_submodule(old.layout.maps.split()[-1].rstrip("."), nn.Identity())
    network.set_submodule(paths[0], adapter)
    for encoder in network.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            encoder.use_nested_tensor = False
