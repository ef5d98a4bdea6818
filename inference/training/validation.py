"""Validation metrics and their comparison between epochs."""

import math
from collections.abc import Iterable, Mapping

from torch import nn

from probattn.inference import metrics
from probattn.inference.distributed import broadcast_result
from probattn.inference.prediction.result import Prediction
from probattn.inference.prediction.sharded import predict_sharded


def validate(model: nn.Module, guide: nn.Module, data: Iterable, *, num_samples: int) -> dict[str, float]:
    """Compute the :func:`prediction_metrics` of the posterior predictive on a validation set.

    Raises:
        ValueError: data without labels.
    """
    prediction = predict_sharded(model, guide, data, num_samples=num_samples)
    if prediction.labels is None:
        raise ValueError("validation data must come with labels: batches (x, y) or (x, y, mask)")
    return broadcast_result(lambda: prediction_metrics(prediction))  # the same decisions on all ranks, to the last bit


def prediction_metrics(prediction: Prediction) -> dict[str, float]:
    """Return the metrics of a prediction with labels.

    These are ``log_prob``, the mean over examples of the joint log likelihood of their labels in nats, and the metrics
    of the likelihood (see :func:`probattn.inference.metrics.evaluate`), over all real tokens.
    """
    log_prob = prediction.log_prob(prediction.labels).double().mean().item()
    return {"log_prob": log_prob, **metrics.evaluate(prediction)}


def monitored(values: Mapping[str, float], monitor: str | None) -> tuple[str, float | None]:
    """Return name and value of the metric that selects the best epoch; the value is None without validation.

    Args:
        values: metrics of an epoch, those of the validation as ``valid/METRIC``.
        monitor: name of the metric; None is ``"nll"`` for classifiers and ``"log_prob"`` for other models.

    Raises:
        ValueError: a metric that the model does not have.
    """
    names = [name.removeprefix("valid/") for name in values if name.startswith("valid/")]
    monitor = monitor or ("nll" if "accuracy" in names else "log_prob")
    if names and monitor not in names:
        raise ValueError(f"monitor {monitor!r} is no metric of this model; choose one of {', '.join(names)}")
    return monitor, values.get(f"valid/{monitor}")


def is_better(monitor: str, value: float, best: float | None) -> bool:
    """Return True if a monitored value is better than the best so far.

    The first value always is; after that NaN never is, and any number is better than NaN.
    """
    if best is None:
        return True
    if math.isnan(best) or math.isnan(value):
        return math.isnan(best) and not math.isnan(value)
    return value > best if metrics.MONITORS[monitor] else value < best
