"""Temperature scaling (Guo et al., 2017, section 4.2) of any predictor, on its log mean probabilities."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from scipy.optimize import brentq
from torch import Tensor

from probattn.inference.methods.predictor import Predictor, class_probs
from probattn.inference.prediction.result import Prediction

TEMPERATURES = (0.05, 20.0)
"""The range in which a temperature is looked for."""


def fit_temperature(prediction: Prediction) -> float:
    """The temperature T that minimises the negative log-likelihood of softmax(log p / T), p the mean probabilities.

    Of a deterministic network these are its logits but for a constant, and T is the classic one. The loss is convex
    in β = 1/T: its derivative, mean_i [E log p_i − log p_iy] with the expectation under the scaled probabilities, has
    one root at most, found in float64 to a relative 1e-12. Without a root in :data:`TEMPERATURES` the better end is
    taken: the lower one where sharper is always better (no example is misclassified, or hardly one), the upper one
    where the classes that happened are no more probable than the others.

    Args:
        prediction: of validation data, ``probs (n, classes)`` and ``labels (n,)``.

    Raises:
        ValueError: no labels, not one per example, one that is no class; no examples; fewer than two classes.
    """
    log_probs = _log_probs(prediction)
    labels = _checked_labels(prediction.labels, log_probs)
    of_labels = log_probs.gather(1, labels.unsqueeze(1)).mean()

    def slope(inverse: float) -> float:
        expected = ((inverse * log_probs).softmax(-1) * log_probs).sum(-1)
        return float(expected.mean() - of_labels)

    coldest, hottest = TEMPERATURES
    if slope(1 / hottest) >= 0:
        return hottest
    if slope(1 / coldest) <= 0:
        return coldest
    return 1 / brentq(slope, 1 / hottest, 1 / coldest, xtol=1e-14, rtol=1e-12)


def scale(prediction: Prediction, temperature: float) -> Prediction:
    """The prediction with probabilities softmax(log p / T), in p's dtype.

    The order of the classes of an example is kept, and its most probable classes stay exactly these whatever is lost
    to rounding, so that accuracy never changes. Labels stay; of what is known of single draws (``expected_entropy``
    and with it the mutual information, ``energy``, ``draws``) nothing follows for the scaled mean, so these are None.

    Args:
        prediction: ``probs (n, classes)``; zeros count as the smallest normal number.
        temperature: T > 0; above 1 the probabilities become more even.

    Raises:
        ValueError: a temperature that is not positive and finite; not one class per example.
    """
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"a temperature is positive and finite, got {temperature}")
    probs = class_probs(prediction)
    scaled = (_log_probs(prediction) / temperature).softmax(-1).to(probs.dtype)
    peak = scaled.amax(-1, keepdim=True)
    below = torch.nextafter(peak, torch.zeros_like(peak))
    scaled = torch.where(probs == probs.amax(-1, keepdim=True), peak, scaled.minimum(below))
    return replace(prediction, probs=scaled, expected_entropy=None, energy=None, draws=None)


@dataclass(frozen=True)
class TemperatureScaled:
    """A predictor with its temperature; see :func:`temperature_scaled`."""

    predictor: Predictor
    temperature: float

    def __call__(self, data: Tensor | Iterable) -> Prediction:
        """The scaled prediction."""
        return scale(self.predictor(data), self.temperature)


def temperature_scaled(predictor: Predictor, valid: Iterable) -> TemperatureScaled:
    """The predictor at the temperature that suits validation data best, which is fitted once, here.

    Args:
        predictor: any.
        valid: batches with labels, which neither trained the model nor are to judge it.

    Raises:
        ValueError: as :func:`fit_temperature`.
    """
    return TemperatureScaled(predictor, fit_temperature(predictor(valid)))


def _log_probs(prediction: Prediction) -> Tensor:
    """Finite log probabilities ``(n, classes)`` in float64."""
    class_probs(prediction)
    return prediction.log_probs.double()


def _checked_labels(labels: Tensor | None, log_probs: Tensor) -> Tensor:
    if labels is None:
        raise ValueError("a temperature is fitted on labels, and these data have none: give batches (x, y)")
    n, classes = log_probs.shape
    if n == 0 or labels.shape != (n,):
        raise ValueError(f"needs one label for each of n ≥ 1 examples, got {tuple(labels.shape)} for {n}")
    if not ((labels >= 0) & (labels < classes)).all():
        raise ValueError(f"labels must be classes 0 to {classes - 1}, got {labels.min()} to {labels.max()}")
    return labels.to(log_probs.device).long()
