"""What a network must not do while its layers draw."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import nn

from probattn.models.third_party.adapters import Adapter
from probattn.torch_compat import is_batch_norm


@contextmanager
def watched(network: nn.Module) -> Iterator[None]:
    """Refuses what a network does inside that would be wrong without a sign.

    Raises:
        ValueError: batch norm that takes its statistics from the batch behind a stochastic layer, whose draws it would
            mix; sites in a network that recomputes its blocks in the backward pass, where no handler answers them.
    """
    with ExitStack() as stack:
        if torch.is_grad_enabled() and any(map(_recomputes, network.modules())):
            stack.enter_context(_without_sites())
        drawn = []
        for path, module in network.named_modules():
            if isinstance(module, Adapter) and module.layer.is_stochastic():
                stack.callback(module.register_forward_hook(lambda *_: drawn.append(True)).remove)
            elif is_batch_norm(module) and (module.training or module.running_mean is None):
                stack.callback(module.register_forward_pre_hook(partial(_check_unmixed, path, drawn)).remove)
        yield


class _without_sites(Messenger):  # noqa: N801
    def _pyro_sample(self, msg: Message) -> None:
        raise ValueError(
            f"site {msg['name']} stands in a network with gradient checkpointing, which would run it again without its "
            "draw: switch it off, gradient_checkpointing_disable() or set_grad_checkpointing(False)"
        )


def _recomputes(module: nn.Module) -> bool:
    """Whether gradient checkpointing is on, as Hugging Face (in training mode) and timm say it."""
    theirs = module.training and getattr(module, "gradient_checkpointing", False)
    return bool(theirs or getattr(module, "grad_checkpointing", False))


def _check_unmixed(path: str, drawn: list[bool], module: nn.Module, args: tuple) -> None:
    if drawn:
        raise ValueError(
            f"{type(module).__name__} at {path!r} runs behind a stochastic layer and would mix its draws: replace it "
            "by layer norm or group norm, or put it into evaluation mode"
        )
