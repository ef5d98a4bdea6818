"""Probabilistic attention in a network that exists already."""

import copy
import operator
from collections.abc import Sequence
from typing import Literal

from pyro.nn.module import to_pyro_module_
from torch import nn

from probattn.attention.base import LayerFactory
from probattn.models.third_party.adapters import Adapter
from probattn.models.third_party.behaviour import check_behaviour
from probattn.models.third_party.converted import Converted
from probattn.models.third_party.recognise import Old, find
from probattn.models.third_party.weights import build
from probattn.pyro_compat import allow_renaming
from probattn.torch_compat import own_modules


def replace_attention(
    network: nn.Module,
    *,
    attention: LayerFactory,
    layers: Literal["last", "all"] | Sequence[int] = "last",
    freeze_rest: bool = False,
) -> Converted:
    """A copy of a network with attention layers of this library in the place of some or all of its own.

    Taken are networks with ``nn.MultiheadAttention`` (torchvision's ViTs, ``nn.TransformerEncoder``), attention as
    timm's ViTs have it, and Hugging Face encoders of the kind of BERT and ViT. Each new layer starts from the old one's
    query, key, value and output weights as far as it has their counterpart; with ``SoftmaxAttention`` the network
    computes what it did. All other weights stay.

    >>> converted = replace_attention(vit_b_16(), attention=KEPSVGPAttention.partial(rank=8))  # doctest: +SKIP

    Args:
        network: the network, which is left as it is; called as ``network(x)`` or ``network(x, mask)``, but for those
            whose calls :class:`Converted` knows.
        attention: factory ``(dim, heads) -> layer`` of the new layers. A ``bias`` or ``dropout`` that it takes and leaves
            open is the old layer's.
        layers: ``"last"``, ``"all"``, or their numbers in the order of definition, from the end if negative.
        freeze_rest: whether only the new layers are to be trained.

    Returns:
        ``converted(x, mask=None)``, which takes draws as networks of this library do.

    Raises:
        ValueError: no attention, or numbers out of range; attention with no counterpart here: masks of more than
            padding, cross-attention, decoders, norms of queries and keys, added tokens; a network in half
            precision, but with softmax attention; a factory of something else.
    """
    copied = copy.deepcopy(network.wrapped if isinstance(network, Converted) else network)
    allow_renaming(copied)
    found = list(find(copied))
    for path, read in (found[number] for number in _chosen(layers, len(found))):
        try:
            old = read()
            outputs = check_behaviour(copied.get_submodule(path))
        except ValueError as error:
            raise ValueError(f"the attention at {path!r} cannot be replaced: {error}; leave it out of layers") from None
        _put(copied, path, old, old.adapt(build(attention, old), outputs=outputs))
    converted = Converted(copied)
    if freeze_rest:
        own = {parameter for layer in converted.layers() for parameter in layer.parameters()}
        for parameter in converted.parameters():
            parameter.requires_grad_(parameter.requires_grad and parameter in own)
    return converted


def _chosen(layers: str | Sequence[int], count: int) -> list[int]:
    """Numbers of the layers, ascending."""
    if count == 0:
        raise ValueError(
            "no attention found: known are nn.MultiheadAttention, attention with qkv and proj as timm's, and with "
            "query, key and value as that of Hugging Face encoders"
        )
    if isinstance(layers, str) and layers in ("last", "all"):
        return [count - 1] if layers == "last" else list(range(count))
    if isinstance(layers, (str, int)) or len(layers) == 0:
        raise ValueError(f'layers must be "last", "all" or a sequence of numbers, got {layers!r}')
    numbers = [operator.index(number) for number in layers]
    beyond = [number for number in numbers if not -count <= number < count]
    if beyond:
        raise ValueError(f"layers {beyond} are out of range: this network has {count} attention layers")
    return sorted({number % count for number in numbers})


def _put(network: nn.Module, path: str, old: Old, adapter: Adapter) -> None:
    """Puts a new layer in the place of an old one, with PyroModules above it, which give its sites their names."""
    target = ".".join(part for part in (path, old.inner) if part)
    replaced = network.get_submodule(target)
    places = [name for name, module in network.named_modules(remove_duplicate=False) if module is replaced]
    if not target or len(places) > 1:
        why = (
            f"is shared by {', '.join(places)}" if target else "is the network itself: use a layer of probattn as it is"
        )
        raise ValueError(f"the attention at {path!r} {why}")
    adapter.training = replaced.training
    adapter.layer.train(replaced.training)
    if old.emptied:
        network.get_submodule(path).set_submodule(old.emptied, nn.Identity())
    *above, name = target.split(".")
    for depth in range(len(above) + 1):
        module = network.get_submodule(".".join(above[:depth]))
        _to_pyro_module(module)
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
    own_modules(module)[name] = adapter


def _to_pyro_module(module: nn.Module) -> None:
    """Makes a module a PyroModule, its children in their order: Pyro would put those that are PyroModules last."""
    children = dict(own_modules(module))
    to_pyro_module_(module, recurse=False)
    own_modules(module).clear()
    own_modules(module).update(children)
