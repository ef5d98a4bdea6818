"""What the last linear layer of a network sees: the features that post-hoc methods work on."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from probattn.inference.methods.predictor import class_probs
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction


@dataclass(frozen=True, eq=False)
class Features:
    """The inputs of a network's last layer for n examples, and what the network predicts from them.

    Args:
        values: ``(S, n, D)``, on the model's device; S is 1 where the network is deterministic up to that layer.
        head: the layer itself, not a copy: outputs are ``head(values)``.
        prediction: the posterior predictive of the same pass, so of the same draws, and its labels.
    """

    values: Tensor
    head: nn.Linear
    prediction: Prediction

    @property
    def labels(self) -> Tensor | None:
        """The labels that came with the inputs ``(n,)``, or None."""
        return self.prediction.labels


def features(model: nn.Module, guide: nn.Module | None, data: Tensor | Iterable, *, num_samples: int = 1) -> Features:
    """The inputs of the last layer under :func:`~probattn.inference.predict`: in evaluation mode, draws shared by all.

    Args:
        model: a classifier of one class per example whose network is ``model.network`` and ends in an ``nn.Linear``.
        guide: its guide; None draws from the prior.
        data: as for ``predict``; features and labels come from one pass, so the order of the batches does not matter.
        num_samples: S.

    Raises:
        ValueError: a network that ends in something else, or another likelihood; what ``predict`` refuses.
    """
    with _last_calls(model) as calls:
        prediction = predict(model, guide, data, num_samples=num_samples)
    number, values = len(class_probs(prediction)), torch.cat([inputs for _, inputs in calls], dim=-2)
    if values.shape[-2] != number:
        raise ValueError(
            f"the network ran on {values.shape[-2]} examples for {number} predictions: features cannot be told apart "
            "where the guide runs it, too (an AutoGuide does the first time: materialise it before)"
        )
    return Features(values if values.dim() == 3 else values.unsqueeze(0), calls[0][0], prediction)


def last_linear(model: nn.Module, x: Tensor) -> nn.Linear:
    """The ``nn.Linear`` whose output is the network's, found by running it on inputs ``(batch, ...)``; a few do.

    Raises:
        ValueError: as for :func:`features`.
    """
    return features(model, None, x).head


@contextmanager
def _last_calls(model: nn.Module) -> Iterator[list[tuple[nn.Linear, Tensor]]]:
    """The last layer and its inputs in each run of the network inside this context."""
    network = getattr(model, "network", None)
    if not isinstance(network, nn.Module):
        raise ValueError(f"{type(model).__name__} has no network: features are those of model.network")
    calls, latest = [], []

    def keep_latest(layer: nn.Linear, inputs: tuple[Tensor], output: Tensor) -> None:
        latest[:] = layer, inputs[0], output

    def keep(network: nn.Module, _: tuple, output: Tensor) -> None:
        if not latest or not _same(latest[2], output):
            raise ValueError(
                f"the last layer must be nn.Linear: what {type(network).__name__} returns is not the output of one"
            )
        layer, inputs, _ = latest
        inputs = inputs.reshape(*output.shape[:-1], -1)  # draws may have been folded into the batch
        calls.append((layer, inputs.clone()))  # a view would keep the tensor it was cut from in memory
        latest.clear()

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_hook(keep_latest) for layer in layers] + [network.register_forward_hook(keep)]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether a tensor is another one, or a view of all of it with the same last dimension."""
    return one is other or (
        one.data_ptr() == other.data_ptr() and one.numel() == other.numel() and one.shape[-1:] == other.shape[-1:]
    )
