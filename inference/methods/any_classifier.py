"""Classifiers of any origin as predictors: a network's logits, or probabilities that were kept."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from probattn.evaluation_mode import evaluation_mode
from probattn.inference.batches import iterate_batches, unpack_batch
from probattn.inference.non_finite import NonFiniteOutputError
from probattn.inference.prediction.aggregate import join
from probattn.inference.prediction.class_labels import are_probs, valid_probs
from probattn.inference.prediction.latents import device
from probattn.inference.prediction.predictor import Predictor
from probattn.inference.prediction.result import Prediction


class Logits(Predictor):
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

    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict inputs ``(n, ...)`` or the batches of a loader."""
        parts = []
        for x, y, mask in map(unpack_batch, iterate_batches(data)):
            with torch.no_grad():
                outputs = self._outputs(x, mask)
            self._check(outputs)
            parts.append(replace(self._prediction(outputs), labels=y))
        return join(parts)

    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Predict one batch, without checks of values."""
        return self._prediction(self._outputs(x, mask))

    def _outputs(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the outputs ``(batch, classes)``, on the device of ``x``."""
        modules = [self.network] if isinstance(self.network, nn.Module) else []
        target = next(filter(None, map(device, modules)), x.device)
        inputs = [x.to(target)] if mask is None else [x.to(target), mask.to(target)]
        with evaluation_mode(*modules):
            outputs = self.network(*inputs)
        if not isinstance(outputs, Tensor):
            raise TypeError(
                f"a classifier returns a tensor of logits, got {type(outputs).__name__}: wrap it "
                "in a function, such as lambda x: network(x).logits"
            )
        shape = tuple(outputs.shape)
        if len(shape) != 2 or shape[0] != x.shape[0] or shape[1] < 2:
            raise ValueError(
                f"logits or probabilities must be (batch, classes ≥ 2), got {shape} of {len(x)} "
                "inputs: of one logit z return torch.stack([torch.zeros_like(z), z], 1)"
            )
        return outputs.detach().to(x.device)

    def _check(self, outputs: Tensor) -> None:
        if not outputs.isfinite().all():
            raise NonFiniteOutputError("the classifier's logits are NaN or Inf")
        if are_probs(outputs).all():
            raise ValueError("these logits are probabilities: return those before the softmax")

    def _prediction(self, outputs: Tensor) -> Prediction:
        # F = −log Σ_c exp(z_c)
        energy = -outputs.logsumexp(-1)
        return Prediction(probs=outputs.softmax(-1), energy=energy, num_samples=1)


class Kept(Logits):
    """Predictor whose inputs are the probabilities ``(batch, classes)`` of any classifier, as
    tensors or NumPy arrays.

    What is around it takes kept probabilities of any framework:
    ``TemperatureScaling(Kept()).fit([(probs, labels)])``.

    Raises:
        ValueError: from ``predict``, inputs that are no probabilities.
    """

    def __init__(self) -> None:
        super().__init__(nn.Identity())

    def _check(self, outputs: Tensor) -> None:
        valid_probs(outputs)

    def _prediction(self, outputs: Tensor) -> Prediction:
        return Prediction(probs=outputs, num_samples=1)
