"""Predictors, the common interface of all methods."""

from collections.abc import Callable, Iterable
from functools import partial

from torch import Tensor, nn

from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction

Predictor = Callable[[Tensor | Iterable], Prediction]
"""Callable ``data -> Prediction``; data are inputs ``(n, ...)``, or batches ``(x, y)`` or ``(x, y, mask)``."""


def posterior_predictive(model: nn.Module, guide: nn.Module | None, *, num_samples: int = 10) -> Predictor:
    """Return :func:`~probattn.inference.predict` of a trained model as a predictor.

    For a network with softmax attention only, the confidence is the maximum softmax probability (MSP) baseline of
    Hendrycks & Gimpel (2017).

    Each call draws ``num_samples`` new samples from PyTorch's global generator, so predictions of two data sets use
    independent samples. Seed it before each call to share them.
    """
    return partial(predict, model, guide, num_samples=num_samples)


def class_probs(prediction: Prediction) -> Tensor:
    """Return the mean probabilities ``(n, classes)`` of a prediction of one class per example.

    Raises:
        ValueError: another kind of prediction, or fewer than two classes.
    """
    probs = prediction.probs
    if probs is None or probs.dim() != 2 or probs.shape[1] < 2:
        found = "none" if probs is None else f"those of shape {tuple(probs.shape)}"
        raise ValueError(
            f"needs probabilities (n, classes) of two or more classes, one per example, got {found}; "
            "with a class per token use prediction.tokens()"
        )
    return probs
