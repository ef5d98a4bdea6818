"""Last-layer features: inputs of a network's final linear layer, which post-hoc methods use."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from probattn.inference.prediction import predictor as predictors
from probattn.inference.prediction.predictor import FittedPredictor, SampledPredictor
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


def features(predictor: SampledPredictor, data: Tensor | Iterable) -> Features:
    """Compute the inputs of the last layer while a predictor predicts.

    Args:
        predictor: predictor of one class per example, with a model whose network is ``model.network`` and ends in an
            ``nn.Linear``.
        data: as for ``predict``; features and labels are from one pass, so loaders may shuffle.

    Raises:
        TypeError: a predictor that runs no model.
        ValueError: a network that does not end in an ``nn.Linear``, or another likelihood; as ``predict`` raises.
    """
    return _features(predictor, predictor.predict, data)


def _features(predictor: SampledPredictor, predict: Callable[..., Prediction], *data: Tensor | Iterable) -> Features:
    head = last_linear(predictor)
    with _recorded_inputs(predictor.model.network, head) as inputs:
        prediction = predict(*data)
    number, values = predictors.class_probs(prediction).shape[0], torch.cat(inputs, dim=-2)
    if values.shape[-2] != number:
        raise ValueError(
            f"the network ran on {values.shape[-2]} examples for {number} predictions: features are ambiguous if the "
            "guide runs it, as an AutoGuide without parameters does"
        )
    return Features(values if values.dim() == 3 else values.unsqueeze(0), head, prediction)


class FeaturePredictor(FittedPredictor):
    """Base class of methods that replace the last layer of a network.

    Args:
        predictor: predictor of one class per example that runs a model; do not change the model's weights afterwards.

    Raises:
        TypeError: another predictor.
        ValueError: its network has no ``nn.Linear``.
    """

    predictor: SampledPredictor

    def fit(self, data: Iterable) -> Self:
        """Fit the last layer to training data without augmentation, batches ``(x, y)`` or ``(x, y, mask)``.

        Raises:
            ValueError: no labels, or labels that are no class indices; a network that does not end in an ``nn.Linear``.
        """
        return self.fit_features(features(self.predictor, data))

    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict inputs or batches, with new samples of the last layer."""
        self.check_fitted()
        return self.predict_features(features(self.predictor, data))

    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Predict one batch, with new samples of the last layer."""
        self.check_fitted()
        return self.predict_features(_features(self.predictor, self.predictor.predict_batch, x, mask))

    @abstractmethod
    def fit_features(self, features: Features) -> Self:
        """Fit the last layer to features with labels."""

    @abstractmethod
    def predict_features(self, features: Features) -> Prediction:
        """Predict from features, with new samples of the last layer."""


def training_labels(features: Features) -> Tensor:
    """Return the labels of training features as class indices ``(n,)``, on the features' device.

    Raises:
        ValueError: no labels, or labels that are no class indices.
    """
    return predictors.labelled_classes(features.prediction)[1].to(features.values.device)


def last_linear(predictor: SampledPredictor) -> nn.Linear:
    """Return the last layer of a predictor's network: its ``nn.Linear`` that was defined last.

    Raises:
        TypeError: a predictor that runs no model.
        ValueError: the network has no ``nn.Linear``.
    """
    predictors.check_sampled(predictor, "a method on features")
    linear = [layer for layer in predictor.model.network.modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ValueError("the last layer must be nn.Linear, and this network has none")
    return linear[-1]


@contextmanager
def _recorded_inputs(network: nn.Module, head: nn.Linear) -> Iterator[list[Tensor]]:
    """Record the inputs of the last layer in each run of the network inside this context."""
    recorded, latest = [], []

    def record_latest(head: nn.Linear, inputs: tuple[Tensor], output: Tensor) -> None:
        latest[:] = inputs[0], output

    def record(network: nn.Module, _: tuple, output: Tensor) -> None:
        if not latest or not _same(latest[1], output):
            raise ValueError(f"the last layer must be nn.Linear, defined last: {type(network).__name__} returns others")
        inputs = latest[0].reshape(*output.shape[:-1], -1)  # draws may have been folded into the batch
        recorded.append(inputs.clone())  # a view would keep its base tensor in memory
        latest.clear()

    with head.register_forward_hook(record_latest), network.register_forward_hook(record):
        yield recorded


def _same(one: Tensor, other: Tensor) -> bool:
    """Return True if a tensor is the other one, or a view of all of it with the same last dimension.

    Tensors of a program that is being exported have no memory; only their shapes are compared.
    """
    same_size = one.numel() == other.numel() and one.shape[-1:] == other.shape[-1:]
    return same_size and (torch.compiler.is_exporting() or one.data_ptr() == other.data_ptr())
