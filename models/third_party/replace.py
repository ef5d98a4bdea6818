"""Replacement of the attention layers of an existing network."""

import copy
import inspect
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from probattn import ProbabilisticAttention, SoftmaxAttention
from probattn.attention.base import LayerFactory
from probattn.attention.softmax import SoftmaxMean
from probattn.models.layer_factories import layer_factory
from probattn.models.third_party.attention_kinds import (
    KINDS,
    AttentionParts,
    find_attention,
    read_attention,
)
from probattn.models.third_party.converted_network import ConvertedNetwork

ALTERNATIVE = "add a transformer block after the network and replace its attention"
"""Advice where attention cannot be replaced."""
JOINT_MAPS = ("query_key_value", "query_value", "query_key")
"""Attributes of our layers that hold the joint linear map, named by its parts; without a key, W_q =
W_k."""


def replace_attention(
    network: nn.Module,
    *,
    attention: str | LayerFactory,
    layers: Literal["last", "all"] | Sequence[int] = "last",
    freeze_rest: bool = False,
) -> ConvertedNetwork:
    """Return a copy of a network in which layers of this library replace some or all attention
    layers.

    Supported are networks with ``nn.MultiheadAttention`` (torchvision's ViTs,
    ``nn.TransformerEncoder``), timm's ViTs, and Hugging Face encoders such as BERT, DistilBERT and
    ViT; the documentation has a table. Each new layer is initialised with the old one's query, key,
    value and output weights where it has counterparts; with ``SoftmaxAttention`` the outputs stay
    the same. All other weights are kept.

    >>> layer = KEPSVGPAttention.partial(rank=8)
    >>> converted = replace_attention(vit_b_16(), attention=layer)  # doctest: +SKIP

    Args:
        network: the network, which is not changed; for how it is called see :func:`call_network
            <probattn.models.third_party.folded_draws.call_network>`.
        attention: name, class or factory ``(dim, heads) -> layer`` of the new layers (see
            :func:`layer_factory <probattn.models.layer_factories.layer_factory>`). A ``bias`` or
            ``dropout`` parameter that it leaves open is set as in the old layer.
        layers: ``"last"``, ``"all"``, or indices in order of definition, negative ones from the
            end; attention of unknown kinds does not count. Without any index, the network stays as
            it is.
        freeze_rest: train only the new layers; the running statistics of batch norms elsewhere do
            not change, either.

    Returns:
        ``converted(x, mask=None)``, which supports draws like networks of this library.

    Raises:
        ValueError: no attention of a known kind, or indices out of range; ``"all"`` with attention
            of unknown kinds; attention that is not softmax attention over all tokens; a factory
            that does not return a layer of this library.
    """
    factory = layer_factory(attention)
    copied = copy.deepcopy(network.wrapped if isinstance(network, ConvertedNetwork) else network)
    located = list(find_attention(copied))
    known = [path for path, is_known in located if is_known]
    unknown = [_describe(copied, path) for path, is_known in located if not is_known]
    if (len(layers) and not known) or (unknown and layers == "all"):
        raise ValueError(
            f"attention that can be replaced is {', '.join(KINDS.values())}; this network has "
            f"{', '.join(unknown[:3]) or 'none'}: choose other layers by index, or {ALTERNATIVE}"
        )
    count = len(known)
    indices = {"last": [-1], "all": range(count)}[layers] if isinstance(layers, str) else layers
    if not all(-count <= index < count for index in indices):
        raise ValueError(
            f"layers={layers!r} is out of range: this network has {count} attention layers"
        )
    for path in (known[index] for index in sorted({range(count)[index] for index in indices})):
        name = _describe(copied, path)
        try:
            _replace(copied, path, factory)
        except Exception as error:  # a third-party module may raise anything
            raise ValueError(
                f"{name} cannot be replaced: {error}; leave it out of layers, or {ALTERNATIVE}"
            ) from error
    converted = ConvertedNetwork(copied)
    if freeze_rest:
        converted.freeze_rest()
    return converted


def _describe(network: nn.Module, path: str) -> str:
    cls = type(network.get_submodule(path))
    return f"{path!r} ({cls.__module__}.{cls.__name__})"


def _replace(network: nn.Module, path: str, factory: LayerFactory) -> None:
    """Replace an attention layer in place."""
    module = network.get_submodule(path)
    num_outputs = check_softmax_attention(module)
    old = read_attention(module)
    replaced = module.get_submodule(old.layout.inner)
    paths = [
        name
        for name, submodule in network.named_modules(remove_duplicate=False)
        if submodule is replaced
    ]
    if len(paths) > 1:
        raise ValueError(f"it is shared by several blocks: {paths}")
    layer = build_layer(factory, old).train(replaced.training)
    adapter = old.layout.adapter(layer, replaced, num_outputs=num_outputs)
    adapter.training = replaced.training
    network.set_submodule(paths[0], adapter)
    if old.layout.inner:
        module.set_submodule("output.dense", nn.Identity())  # this map is in the new layer
    for encoder in network.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            encoder.use_nested_tensor = False


@torch.no_grad()
def check_softmax_attention(module: nn.Module) -> int | None:
    """Compare a module with softmax attention that has its weights, on a few tokens in evaluation
    mode.

    This shows what its class does not: norms of queries and keys, position biases, other scales, a
    causal mask. The check runs on a copy with random weights, since zeros, as output maps often
    begin with, would hide them.

    Returns:
        Length of the tuple that the layer to be replaced returns; None if it returns a tensor.

    Raises:
        ValueError: a different output, or a module that cannot be called on tokens alone.
    """
    probe = copy.deepcopy(module).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in probe.parameters():
        parameter.copy_(
            torch.randn(parameter.shape, generator=generator) / parameter.shape[-1:].numel() ** 0.5
        )
    old = read_attention(probe)
    inner = probe.get_submodule(old.layout.inner)
    x = torch.randn(2, 5, len(old.out), generator=generator).to(old.out)
    output = inner(x, x, x) if isinstance(module, nn.MultiheadAttention) else inner(x)
    actual = output[0] if isinstance(output, tuple) else output
    if old.layout.inner:
        actual = nn.functional.linear(actual, old.out[:, :-1], old.out[:, -1])
    adapter = old.layout.adapter(build_layer(SoftmaxAttention, old), inner).eval()
    expected = adapter.attend(x, None)
    eps = max(
        torch.finfo(dtype).eps for dtype in (x.dtype, torch.float32)
    )  # some compute scores in float32
    if (
        actual.shape != expected.shape
        or (actual - expected).abs().max() > eps**0.5 * expected.abs().max()
    ):
        raise ValueError(
            "its output is not the softmax attention of its linear maps with scale 1/√(head width)"
        )
    return len(output) if isinstance(output, tuple) else None


def build_layer(factory: LayerFactory, old: AttentionParts) -> ProbabilisticAttention:
    """Build a layer with the query, key, value and output weights of another, where it has
    counterparts.

    Query and key weights are multiplied by the layer's ``gain``, as its initial ones are. The
    output map has a counterpart in layers with values, and in those whose mean is softmax
    attention, which is then the old layer.

    Args:
        factory: ``(dim, heads) -> layer``; a ``bias`` or ``dropout`` parameter that it leaves open
            is set as in the old layer.
        old: the old layer.

    Raises:
        ValueError: a factory that does not return a layer of this library.
    """
    options = {"bias": old.biased, "dropout": old.dropout}
    parameters = inspect.signature(factory).parameters
    given = getattr(factory, "keywords", {})
    left_open = [name for name in options if name in parameters and name not in given]
    layer = factory(len(old.out), old.heads, **{name: options[name] for name in left_open})
    if not isinstance(layer, ProbabilisticAttention):
        raise ValueError(
            f"attention must build attention layers of probattn, got {type(layer).__name__}"
        )
    layer.to(old.out)
    sources = {"query": layer.gain * old.query, "key": layer.gain * old.key, "value": old.value}
    for name in JOINT_MAPS:
        if isinstance(joint := getattr(layer, name, None), nn.Linear):
            _copy(torch.cat([sources[source] for source in name.split("_")]), joint)
            if name.endswith("value"):
                _copy(old.out, cast(nn.Linear, layer.out))
    if isinstance(mean := getattr(layer, "mean", None), SoftmaxMean):
        _copy(old.value, mean.value)
        _copy(old.out, mean.out)
    return layer


@torch.no_grad()
def _copy(source: Tensor, linear: nn.Linear) -> None:
    """Copy a linear map whose bias is its last column."""
    linear.weight.copy_(source[:, :-1])
    if linear.bias is not None:
        linear.bias.copy_(source[:, -1])
