"""Isotonic regression of the probabilities of any predictor."""

from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from probattn.inference.methods.temperature import ScalingMethod, with_log_scores
from probattn.inference.prediction.predictor import class_probs, labelled_classes
from probattn.inference.prediction.result import Prediction


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
