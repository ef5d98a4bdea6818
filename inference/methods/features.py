"""Last-layer features: inputs of a network's final linear layer, which post-hoc methods use."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from probattn.handlers import exclusive
from probattn.inference.methods.predictor import class_probs
from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction


@dataclass(frozen=True, eq=False)
class Features:
    """Inputs of a network's last layer for n examples, and the network's prediction from them.

    Args:
        values: features ``(S, n, D)``, on the model's device; S is 1 if the network is deterministic up to that layer.
        head: the last layer, not a copy: outputs are ``head(values)``.
        prediction: posterior predictive of the same forward pass and samples, with its labels.
    """

    values: Tensor
    head: nn.Linear
    prediction: Prediction

    @property
    def labels(self) -> Tensor | None:
        """Labels that came with the inputs ``(n,)``, or None."""
        return self.prediction.labels


def features(model: nn.Module, guide: nn.Module | None, data: Tensor | Iterable, *, num_samples: int = 1) -> Features:
    """Compute the inputs of the last layer under :func:`~probattn.inference.predict`.

    Args:
        model: a classifier of one class per example whose network is ``model.network`` and ends in an ``nn.Linear``.
        guide: its guide; None samples from the prior.
        data: as for ``predict``; features and labels are from one pass, so loaders may shuffle.
        num_samples: number of posterior samples S, shared by all examples.

    Raises:
        ValueError: a network that does not end in an ``nn.Linear``, or another likelihood; as ``predict`` raises.
    """
    with exclusive(), _last_calls(model) as calls:
        prediction = predict(model, guide, data, num_samples=num_samples)
    number, values = len(class_probs(prediction)), torch.cat([inputs for _, inputs in calls], dim=-2)
    if values.shape[-2] != number:
        raise ValueError(
            f"the network ran on {values.shape[-2]} examples for {number} predictions: features are ambiguous if the "
            "guide runs the network, too (an AutoGuide does the first time: materialise it before)"
        )
    return Features(values if values.dim() == 3 else values.unsqueeze(0), calls[0][0], prediction)


@dataclass(frozen=True, eq=False)
class FeaturePredictor(ABC):
    """Predictor from the features of a network.

    Args:
        model, guide, num_samples: as for ``predict``; do not change the model's weights afterwards.
    """

    model: nn.Module
    guide: nn.Module | None
    num_samples: int

    def __call__(self, data: Tensor | Iterable) -> Prediction:
        """Predict inputs or batches, with new samples of the latent sites and of the last layer."""
        return self.predict_features(features(self.model, self.guide, data, num_samples=self.num_samples))

    @abstractmethod
    def predict_features(self, features: Features) -> Prediction:
        """Predict from features, with new samples of the last layer."""


@contextmanager
def _last_calls(model: nn.Module) -> Iterator[list[tuple[nn.Linear, Tensor]]]:
    """Record the last layer and its inputs in each run of the network inside this context."""
    network = getattr(model, "network", None)
    if not isinstance(network, nn.Module):
        raise ValueError(f"{type(model).__name__} has no network: features are those of model.network")
    calls, latest = [], []

    def record_latest(layer: nn.Linear, inputs: tuple[Tensor], output: Tensor) -> None:
        latest[:] = layer, inputs[0], output

    def record(network: nn.Module, _: tuple, output: Tensor) -> None:
        if not latest or not _same(latest[2], output):
            raise ValueError(
                f"the last layer must be nn.Linear: what {type(network).__name__} returns is not the output of one"
            )
        layer, inputs, _ = latest
        inputs = inputs.reshape(*output.shape[:-1], -1)  # draws may have been folded into the batch
        calls.append((layer, inputs.clone()))  # a view would keep its base tensor in memory
        latest.clear()

    with ExitStack() as hooks:
        for layer in network.modules():
            if isinstance(layer, nn.Linear):
                hooks.enter_context(layer.register_forward_hook(record_latest))
        hooks.enter_context(network.register_forward_hook(record))
        yield calls


def _same(one: Tensor, other: Tensor) -> bool:
    """Return True if a tensor is the other one, or a view of all of it with the same last dimension."""
    return one is other or (
        one.data_ptr() == other.data_ptr() and one.numel() == other.numel() and one.shape[-1:] == other.shape[-1:]
    )
