"""Base class of split-conformal predictors, and their calibrated quantile."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from probattn.inference.prediction.predictor import FittedPredictor, Predictor
from probattn.inference.prediction.result import Prediction


class ConformalPredictor(FittedPredictor):
    """Base class of conformal predictors: the predictor inside, with decisions on its predictions.

    Args:
        predictor: any predictor; None to decide on predictions of others.
        alpha: allowed probability of missing the label, 0 < alpha < 1.

    Raises:
        ValueError: alpha outside (0, 1).
    """

    def __init__(self, predictor: Predictor | None = None, *, alpha: float) -> None:
        super().__init__(predictor)
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must lie between 0 and 1, got {alpha}: 0.1 for a coverage of 90 %")
        self.alpha = alpha

    def predict(self, data: Tensor | Iterable) -> Prediction:
        """Predict as the predictor does."""
        return self.base().predict(data)

    def predict_batch(self, x: Tensor, mask: Tensor | None = None) -> Prediction:
        """Predict one batch as the predictor does."""
        return self.base().predict_batch(x, mask)


def conformal_quantile(scores: Tensor, alpha: float) -> Tensor:
    """Return q̂ ``(...)`` of scores ``(n, ...)``."""
    missed = math.floor((len(scores) + 1) * alpha + 1e-9)  # 100 · 0.29 is 28.999…
    return scores.sort(0).values[-missed] if missed else torch.full_like(scores[0], math.inf)
