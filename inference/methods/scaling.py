"""Scaling of the mean probabilities of any predictor: by a temperature (Guo et al., 2017, section
4.2), with a bias of each class, or also with a slope of each class; by isotonic regression."""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from probattn.inference.metrics.refinement import Scaling, fit_scaling
from probattn.inference.prediction.predictor import (
    FewExamplesWarning,
    FittedPredictor,
    class_probs,
    labelled_classes,
)
from probattn.inference.prediction.result import Prediction

TEMPERATURE_RANGE = (0.05, 20.0)
"""Range of fitted temperatures."""
MAX_ERROR = 0.25
"""Relative standard error of a temperature from which its fit warns."""


def fit_temperature(prediction: Prediction) -> float:
    """Fit the temperature T that minimises the negative log-likelihood of softmax(log p / T), p the
    mean probabilities.

    For deterministic networks log p equals the logits up to a constant, so T is the usual
    temperature. The loss is convex in β = 1/T: its derivative, mean_i [E log p_i − log p_iy] with
    the expectation under the scaled probabilities, has at most one root, found in float64 to a
    relative 1e-12. Without a root in :data:`TEMPERATURE_RANGE` the better end is taken: the upper
    one if the labels are no more probable than the other classes.

    Without an error among n examples, or almost, the likelihood would drive T to 0. But n examples
    support no mean confidence above (n + 1) / (n + 2), the rule of succession after n successes. A
    T below 1 is therefore raised until the mean confidence is no higher, or T is 1.

    Args:
        prediction: prediction of validation data, ``probs (n, classes)`` and ``labels (n,)``.

    Raises:
        ValueError: no labels, not one per example, not integers or out of range; no examples; fewer
            than two classes; probabilities that are not finite.

    Warns:
        FewExamplesWarning: T was raised, or its relative standard error by the Fisher information
            is above :data:`MAX_ERROR`.
    """
    _, labels = labelled_classes(prediction)
    log_probs = prediction.log_probs.double()
    examples = len(labels)
    supported = (examples + 1) / (examples + 2)
    of_labels = log_probs.gather(1, labels.unsqueeze(1)).mean()

    def slope(inverse: float) -> float:
        expected = ((inverse * log_probs).softmax(-1) * log_probs).sum(-1)
        return float(expected.mean() - of_labels)

    def excess_confidence(inverse: float) -> float:
        confidence = (inverse * log_probs).softmax(-1).amax(-1)
        return float(confidence.mean()) - supported

    coldest, hottest = TEMPERATURE_RANGE
    inverse = _root(slope, 1 / hottest, 1 / coldest)
    raised = inverse > 1 and excess_confidence(inverse) > 0
    if raised:
        inverse = _root(excess_confidence, 1.0, inverse)
    error = relative_error(log_probs, inverse)
    if raised or error > MAX_ERROR:
        fitted = f"the temperature {1 / inverse:.2g}, from {examples} examples,"
        message = f"{fitted} has a standard error of {error:.0%}"
        warnings.warn(message, FewExamplesWarning, stacklevel=3)
    return 1 / inverse


def _root(increasing: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of an increasing function, or the end of the range that is nearer to it."""
    from scipy.optimize import brentq  # here, since its import takes a third of a second

    if increasing(low) >= 0:
        return low
    if increasing(high) <= 0:
        return high
    return brentq(increasing, low, high, xtol=1e-14, rtol=1e-12)


def relative_error(log_probs: Tensor, inverse: float) -> float:
    """Return the standard error of log T: the information on β is Σ_i Var[log p_i] under the scaled
    probabilities."""
    scaled = (inverse * log_probs).softmax(-1)
    mean = (scaled * log_probs).sum(-1, keepdim=True)
    information = (scaled * (log_probs - mean).square()).sum()
    return float(information.rsqrt()) / inverse


def scale(prediction: Prediction, temperature: float) -> Prediction:
    """Scale the probabilities of a prediction to softmax(log p / T), in p's dtype.

    ``expected_entropy``, ``energy`` and ``draws`` are undefined for the scaled mean, and therefore
    None. The mutual information stays that of the samples.

    Args:
        prediction: prediction with ``probs (n, classes)``; zeros count as the smallest normal
            number.
        temperature: T > 0; above 1 probabilities become more uniform.

    Raises:
        ValueError: not one class per example.
    """
    return with_log_scores(prediction, prediction.log_probs.double() / temperature)


def with_log_scores(prediction: Prediction, scores: Tensor) -> Prediction:
    """Return a prediction with the probabilities softmax(scores), in p's dtype.

    ``expected_entropy``, ``energy`` and ``draws`` are undefined for them, and therefore None. The
    mutual information stays that of the samples.

    Raises:
        ValueError: not one class per example.
    """
    return replace(
        prediction,
        probs=scores.softmax(-1).to(class_probs(prediction)),
        expected_entropy=None,
        energy=None,
        draws=None,
        sample_information=prediction.mutual_information,
    )


class ScalingMethod(FittedPredictor):
    """Base of methods that scale the mean probabilities of any predictor of one class per
    example."""

    @abstractmethod
    def scaled(self, prediction: Prediction) -> Prediction:
        """Scale a prediction."""

    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict and scale."""
        self.check_fitted()
        return self.scaled(self.predictor.predict(data))

    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Predict and scale one batch; decisions inside stay those on the unscaled one."""
        self.check_fitted()
        return self.scaled(self.predictor.predict_batch(x, mask))


class TemperatureScaling(ScalingMethod):
    """Temperature scaling of the mean probabilities of any predictor (Guo et al., 2017, section
    4.2).

    Args:
        predictor: any predictor of one class per example.

    Attributes:
        temperature: the fitted temperature.
    """

    fitted_values = ("temperature",)

    def fit_prediction(self, prediction: Prediction) -> Self:
        """Fit the temperature to a prediction with its labels."""
        self.temperature = fit_temperature(prediction)
        self.fitted = True
        return self

    def scaled(self, prediction: Prediction) -> Prediction:
        """Scale a prediction."""
        return scale(prediction, self.temperature)


class BiasScaling(ScalingMethod):
    """Temperature scaling with a bias of each class, softmax(log p / T + b) (bias-corrected
    temperature scaling, Alexandari, Kundaje & Shrikumar, 2020).

    The biases have a prior N(0, 1), so that few examples of a class move its bias little (see
    :func:`~probattn.inference.metrics.refinement.fit_scaling`).

    Args:
        predictor: any predictor of one class per example.

    Attributes:
        weights: 1/T, and b ``(classes,)`` in nats, one after the other.
    """

    fitted_vector = "weights"
    by_class = False

    def fit_prediction(self, prediction: Prediction) -> Self:
        """Fit slopes and biases to a prediction with its labels."""
        _, labels = labelled_classes(prediction)
        self.weights = torch.cat(fit_scaling(prediction.log_probs, labels, by_class=self.by_class))
        self.fitted = True
        return self

    def scaled(self, prediction: Prediction) -> Prediction:
        """Scale a prediction."""
        log_probs = prediction.log_probs
        slope, bias = self.weights.tensor_split([-log_probs.shape[-1]])
        return with_log_scores(prediction, Scaling(slope, bias)(log_probs))


class VectorScaling(BiasScaling):
    """Vector scaling with a slope and a bias of each class, softmax(w ⊙ log p + b) (Guo et al.,
    2017, section 4.2).

    Log probabilities stand in the place of the logits of one network, as in diagonal Dirichlet
    calibration (Kull et al., 2019). The biases have a prior N(0, 1), and so have the slopes around
    their mean (see :func:`~probattn.inference.metrics.refinement.fit_scaling`). The most probable
    class may change.

    Args:
        predictor: any predictor of one class per example.

    Attributes:
        weights: w and b ``(2 classes,)``, b in nats.
    """

    by_class = True


class IsotonicScaling(ScalingMethod):
    """Isotonic regression of the labels on the probabilities of all classes (Zadrozny & Elkan,
    2002), by one function for all (Zhang, Kailkhura & Han, 2020).

    A class gets g(p) + p/(n + 2), divided by the sum over the classes. g is the increasing function
    with the least squares from the n · classes pairs of a probability and 1 for the label, 0 for
    another class; it is linear between their probabilities. The second term keeps the order of the
    classes of each example, and no class gets 0 that had more.

    Args:
        predictor: any predictor of one class per example.

    Attributes:
        examples: n.
        knots: probabilities, and g at them ``(2 knots,)``.
    """

    fitted_values = ("examples",)
    fitted_vector = "knots"

    def fit_prediction(self, prediction: Prediction) -> Self:
        """Fit g to a prediction with its labels."""
        from sklearn.isotonic import IsotonicRegression  # here, since its import takes a second

        probs, labels = labelled_classes(prediction)
        is_label = F.one_hot(labels, probs.shape[1])
        pairs = [values.flatten().double().cpu().numpy() for values in (probs, is_label)]
        found = IsotonicRegression().fit(*pairs)
        # Beyond the first and the last g is constant.
        places = np.pad(found.X_thresholds_, 1, constant_values=(-1, 2))
        values = np.pad(found.y_thresholds_, 1, mode="edge")
        self.knots = torch.from_numpy(np.append(places, values))
        self.examples = float(len(labels))
        self.fitted = True
        return self

    def scaled(self, prediction: Prediction) -> Prediction:
        """Scale a prediction."""
        probs = class_probs(prediction).double()
        mixed = self._increasing(probs) + probs / (self.examples + 2)
        return with_log_scores(prediction, mixed.log())

    def _increasing(self, probs: Tensor) -> Tensor:
        """Return g(p)."""
        places, values = self.knots.to(probs.device).chunk(2)
        after = torch.searchsorted(places, probs)
        left, right = places[after - 1], places[after]
        share = (probs - left) / (right - left)
        return torch.lerp(values[after - 1], values[after], share)
