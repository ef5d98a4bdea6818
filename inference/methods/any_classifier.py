"""Classifiers of any origin as predictors: a network's logits, or probabilities that were kept."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from probattn.evaluation_mode import evaluation_mode
from probattn.inference.batches import iterate_batches, unpack_batch
from probattn.inference.non_finite import NonFiniteOutputError
from probattn.inference.prediction.aggregate import join
from probattn.inference.prediction.class_labels import class_labels
from probattn.inference.prediction.latents import device
from probattn.inference.prediction.predictor import Predictor
from probattn.inference.prediction.result import Prediction

ROUNDING = 1e-3
"""Largest difference of a sum of probabilities from 1."""


class _AnyClassifier(Predictor):
    """Base class of predictors without samples, of one class per example."""

    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict inputs ``(n, ...)`` or the batches of a loader.

        Raises:
            TypeError, ValueError: what the class names; labels that are no class indices; no data.
        """
        parts = []
        for x, y, mask in map(unpack_batch, iterate_batches(data)):
            with torch.no_grad():
                part = self.checked_batch(x, mask)
            if y is not None:
                examples, classes = part.require("probs").shape
                y = class_labels(y, examples=examples, classes=classes)
            parts.append(replace(part, labels=y))
        if not parts:
            raise ValueError("no data to predict: the loader gave no batch")
        return join(parts)

    @abstractmethod
    def checked_batch(self, x: Tensor, mask: Tensor | None) -> Prediction:
        """Predict one batch, with checks of values."""


class Logits(_AnyClassifier):
    """Predictor around any classifier: a module or function from inputs to logits.

    A module predicts in evaluation mode, and each of its submodules returns to its own. Methods and
    decisions go around it, and :func:`~probattn.inference.export` takes the stack.

    Args:
        network: ``network(x)``, or ``network(x, mask)`` for batches with a mask, returns logits
            ``(batch, classes)``.

    Raises:
        TypeError: from ``predict``, outputs that are no tensor.
        ValueError: from ``predict``, outputs of another shape, or that are probabilities.
        NonFiniteError: from ``predict``, outputs that are NaN or Inf.
    """

    def __init__(self, network: Callable[..., Tensor]) -> None:
        super().__init__()
        self.network = network

    def checked_batch(self, x: Tensor, mask: Tensor | None) -> Prediction:
        """Predict one batch, with checks of values."""
        logits = self._logits(x, mask)
        if not logits.isfinite().all():
            raise NonFiniteOutputError("the classifier's logits are NaN or Inf")
        if _are_probs(logits).all():
            raise ValueError("these logits are probabilities: return those before the softmax")
        return _of_logits(logits.to(x.device))

    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Predict one batch, without checks of values."""
        return _of_logits(self._logits(x, mask).to(x.device))

    def _logits(self, x: Tensor, mask: Tensor | None) -> Tensor:
        modules = [self.network] if isinstance(self.network, nn.Module) else []
        target = next(filter(None, map(device, modules)), x.device)
        inputs = [x.to(target)] if mask is None else [x.to(target), mask.to(target)]
        with evaluation_mode(*modules):
            logits = self.network(*inputs)
        if not isinstance(logits, Tensor):
            raise TypeError(
                f"a classifier returns a tensor of logits, got {type(logits).__name__}: wrap it in "
                "a function, such as lambda x: network(x).logits"
            )
        shape = tuple(logits.shape)
        if len(shape) != 2 or shape[0] != x.shape[0] or shape[1] < 2:
            raise ValueError(
                f"logits must be (batch, classes ≥ 2), got {shape} for {len(x)} inputs: of one "
                "logit z return torch.stack([torch.zeros_like(z), z], 1)"
            )
        return logits.detach()


class Kept(_AnyClassifier):
    """Predictor whose inputs are the probabilities ``(batch, classes)`` of any classifier, as
    tensors or NumPy arrays.

    What is around it takes kept probabilities of any framework:
    ``TemperatureScaling(Kept()).fit([(probs, labels)])``.

    Raises:
        ValueError: from ``predict``, inputs that are no probabilities.
    """

    def checked_batch(self, x: Tensor, mask: Tensor | None) -> Prediction:
        """Return the probabilities of one batch, with checks of values."""
        if x.dim() != 2 or x.shape[1] < 2 or not x.is_floating_point():
            raise ValueError(
                f"probabilities must be floats (n, classes ≥ 2), got {tuple(x.shape)}, {x.dtype}"
            )
        if not _are_probs(x).all():
            row = x[_are_probs(x).int().argmin()].tolist()
            raise ValueError(f"probabilities lie in [0, 1] and sum to 1, got {row}: apply softmax")
        return self.predict_batch(x)

    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Return the probabilities of one batch, without checks of values."""
        return Prediction(probs=x, num_samples=1)


def _of_logits(logits: Tensor) -> Prediction:
    # F = −log Σ_c exp(z_c)
    return Prediction(probs=logits.softmax(-1), energy=-logits.logsumexp(-1), num_samples=1)


def _are_probs(rows: Tensor) -> Tensor:
    """Return which rows ``(n,)`` of ``(n, classes)`` are probabilities."""
    is_share = (rows >= -ROUNDING) & (rows <= 1 + ROUNDING)
    return is_share.all(1) & ((rows.sum(1) - 1).abs() <= ROUNDING)
