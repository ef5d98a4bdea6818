"""Modules that would silently compute wrong results next to stochastic layers."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import nn

from probattn.models.third_party.adapters import Adapter

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@contextmanager
def reject_incompatible_modules(network: nn.Module) -> Iterator[None]:
    """Context manager that raises where a network's modules do not work with draws of its layers.

    Raises:
        ValueError: batch norm with batch statistics after a stochastic layer, whose draws it would mix; a stochastic
            layer that several blocks share, whose sites would be sampled several times; sample sites in a network with
            gradient checkpointing, whose recomputation runs outside the handlers.
    """
    with ExitStack() as stack:
        if torch.is_grad_enabled() and any(map(_uses_checkpointing, network.modules())):
            stack.enter_context(_NoSampleSites())
        drawn: list[str] = []
        for path, module in network.named_modules():
            if isinstance(module, Adapter) and module.layer.is_stochastic():
                stack.callback(module.register_forward_pre_hook(partial(_check_shared, path, drawn)).remove)
                stack.callback(module.register_forward_hook(partial(_record, path, drawn)).remove)
            elif isinstance(module, BATCH_NORMS) and (module.training or module.running_mean is None):
                stack.callback(module.register_forward_pre_hook(partial(_check_batch_norm, path, drawn)).remove)
        yield


class _NoSampleSites(Messenger):
    def _pyro_sample(self, msg: Message) -> None:
        raise ValueError(
            f"site {msg['name']} is in a network with gradient checkpointing, whose recomputation would not see its "
            "value: switch it off, gradient_checkpointing_disable() or set_grad_checkpointing(False)"
        )


def _uses_checkpointing(module: nn.Module) -> bool:
    """Return True if a Hugging Face (in training mode) or timm module uses gradient checkpointing."""
    hugging_face = module.training and getattr(module, "gradient_checkpointing", False)
    return bool(hugging_face or getattr(module, "grad_checkpointing", False))


def _check_shared(path: str, drawn: list[str], *_: Any) -> None:
    if path in drawn:
        raise ValueError(
            f"the attention at {path!r} is called twice in one pass, and a stochastic layer samples its sites once: "
            "give each block weights of its own, or leave it out of replace_attention's layers"
        )


def _record(path: str, drawn: list[str], *_: Any) -> None:
    drawn.append(path)


def _check_batch_norm(path: str, drawn: list[str], module: nn.Module, args: tuple) -> None:
    if drawn:
        raise ValueError(
            f"{type(module).__name__} at {path!r} runs after a stochastic layer and would mix its draws: replace it by "
            "layer norm or group norm, or put it into evaluation mode"
        )
