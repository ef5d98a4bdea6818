"""Features of other libraries' attention that layers of this library do not support, recognised by their names."""

import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

from torch import nn


class Obstacle(NamedTuple):
    """Feature of attention without a counterpart in this library.

    Attributes:
        feature: its description.
        attributes: pattern of the names of modules, parameters and flags that it consists of.
        arguments: pattern of the arguments of attention by which a network passes it.
    """

    feature: str
    attributes: str
    arguments: str


OBSTACLES = (
    Obstacle("a causal mask", r"^is_(causal|decoder)$", r"^is_causal$"),
    Obstacle("rotary position embeddings", r"^rope|rotary", r"^rope|rotary|^position_embeddings$"),
    Obstacle(
        "a relative position bias",
        r"rel(ative)?_(pos|attention|bias|embed)|position_bias|^attention_biases$|^cpb_mlp$|^pos_(key_|query_|q_)?proj$",
        r"rel(ative)?_(pos|bias|embed)|position_bias|^att(entio)?n_mask$",
    ),
    Obstacle("talking heads", r"^proj_l$|^head_logits_proj$|talking_head", r"$^"),
    Obstacle("a learned scale of the scores", r"^(logit_scale|temperature|tau)$", r"$^"),
    Obstacle("norms of queries and keys", r"^(q|k|query|key)_(layer_?)?norm$|^qk_norm$", r"$^"),
    Obstacle("weights shared by several blocks", r"_layer_groups$", r"^attention_mask$"),
    Obstacle("cross-attention", r"^is_cross_attention$", r"^encoder_|^past_key_value"),
)
"""Obstacles, of which the first one found is reported."""
UNSUPPORTED = "which layers of this library do not support"


def find_obstacle(network: nn.Module, path: str) -> str | None:
    """Return a description of the first obstacle to replacing an attention layer, or None.

    A feature is a part of the layer, or of a module above it whose arguments the layer takes: a network computes rotary
    embeddings and some position biases once, and passes them to all layers.

    Args:
        network: the network.
        path: path of the attention layer.
    """
    module = network.get_submodule(path)
    own = [name.rsplit(".", 1)[-1] for name, part in _parts(module) if not isinstance(part, nn.Identity)]
    names = path.split(".")
    above = [network.get_submodule(".".join(names[:depth])) for depth in range(len(names))] if path else []
    outside = [name for each in above for name, _ in (*each.named_children(), *each.named_parameters(recurse=False))]
    arguments = {name for each in module.modules() for name in inspect.signature(each.forward).parameters}
    for obstacle in OBSTACLES:
        passed = any(re.search(obstacle.arguments, name) for name in arguments)
        for name in (*own, *(outside if passed else ())):
            if re.search(obstacle.attributes, name):
                return f"{obstacle.feature} ({name})"
    return None


def describe_unrecognised(network: nn.Module) -> str:
    """Return a sentence on the first attention layer with an obstacle, or else on the structures that are supported.

    Args:
        network: a network in which no attention layer was recognised.
    """
    paths = [
        path for path, module in network.named_modules() if re.search("attention|attn", type(module).__name__, re.I)
    ]
    innermost = [path for path in paths if not any(other.startswith(f"{path}.") for other in paths)]
    found = ((path, find_obstacle(network, path)) for path in innermost)
    path, obstacle = next((each for each in found if each[1] is not None), (None, None))
    if path is not None:
        return f"the attention at {name_layer(network, path)} has {obstacle}, {UNSUPPORTED}"
    subject = f"{name_layer(network, innermost[0])} is none of them" if innermost else "the network has none"
    return (
        "supported are nn.MultiheadAttention, attention with qkv and proj as in timm, and with separate query, key, "
        f"value and output maps as in Hugging Face encoders; {subject}"
    )


def name_layer(network: nn.Module, path: str) -> str:
    """Return the path and class of a module, for error messages."""
    return f"{path!r} ({type(network.get_submodule(path)).__name__})"


def _parts(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Iterate over the modules, parameters and set flags of a module by name."""
    for path, each in module.named_modules():
        yield path, each
        yield from each.named_parameters(recurse=False)
        yield from ((name, flag) for name, flag in vars(each).items() if flag is True)
