"""What all methods make and take: a predictor."""

from collections.abc import Callable, Iterable
from functools import partial

from torch import Tensor, nn

from probattn.inference.prediction.predict import predict
from probattn.inference.prediction.result import Prediction

Predictor = Callable[[Tensor | Iterable], Prediction]
"""A callable ``data -> Prediction``; the data are inputs ``(n, ...)``, or batches ``(x, y)`` or ``(x, y, mask)``."""


def posterior_predictive(model: nn.Module, guide: nn.Module | None, *, num_samples: int = 10) -> Predictor:
    """The posterior predictive of a trained model: :func:`~probattn.inference.predict` without further ado.

    Of a network with softmax attention only, its most probable class and that one's probability are the baseline of
    Hendrycks & Gimpel (2017), MSP.

    Each call makes new draws from torch's global generator, so that predictions of two data sets rest on independent
    draws. Seed it before a call that is to be repeated; with the same seed before each, all share their draws.

    Args:
        model, guide: as for ``predict``.
        num_samples: draws of each call.
    """
    return partial(predict, model, guide, num_samples=num_samples)


def class_probs(prediction: Prediction) -> Tensor:
    """The mean probabilities ``(n, classes)`` of a prediction of one class per example.

    Raises:
        ValueError: another kind of prediction, or fewer than two classes.
    """
    probs = prediction.probs
    if probs is None or probs.dim() != 2 or probs.shape[1] < 2:
        found = "none" if probs is None else f"those of shape {tuple(probs.shape)}"
        raise ValueError(
            f"needs probabilities (n, classes) of two or more classes, one per example, got {found}; "
            "of a class per token take prediction.tokens()"
        )
    return probs
