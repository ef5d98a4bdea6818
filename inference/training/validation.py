"""Validation metrics and their comparison between epochs."""

import math
from collections.abc import Container, Iterable

from torch import nn

from probattn.inference import metrics
from probattn.inference.distributed import broadcast_result
from probattn.inference.prediction.result import Prediction
from probattn.inference.prediction.sharded import predict_sharded


def validate(
    model: nn.Module, guide: nn.Module, data: Iterable, *, num_samples: int
) -> dict[str, float]:
    """Compute the :func:`prediction_metrics` of the posterior predictive on a validation set."""
    prediction = predict_sharded(model, guide, data, num_samples=num_samples)
    return broadcast_result(
        lambda: prediction_metrics(prediction)
    )  # the same decisions on all ranks, to the last bit


def prediction_metrics(prediction: Prediction) -> dict[str, float]:
    """Return the metrics of a prediction with labels.

    These are ``log_prob``, the mean over examples of the joint log likelihood of their labels in
    nats, and the metrics of the likelihood (see :func:`probattn.inference.metrics.evaluate`), over
    all real tokens.
    """
    log_prob = prediction.log_prob(prediction.require("labels")).double().mean().item()
    return {"log_prob": log_prob, **metrics.evaluate(prediction)}


def monitored(monitor: str | None, names: Container[str]) -> str:
    """Return the metric that selects the best epoch: ``options.monitor``, or by default that of
    the likelihood, of which the validation has the metrics ``valid/NAME``."""
    return monitor or ("nll" if "valid/accuracy" in names else "log_prob")


def is_better(monitor: str, value: float, best: float | None) -> bool:
    """Return True if a monitored value is better than the best so far.

    The first value always is; after that NaN never is, and any number is better than NaN.
    """
    if best is None or math.isnan(best):
        return best is None or not math.isnan(value)
    return value > best if metrics.MONITORS[monitor] else value < best
