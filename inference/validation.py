"""Validation metrics, and which of two values is the better."""

from collections.abc import Iterable

from torch import nn

from probattn.inference import metrics
from probattn.inference.prediction import predict


def validate(model: nn.Module, guide: nn.Module, data: Iterable, *, num_draws: int) -> dict[str, float]:
    """All metrics of the posterior predictive for classifiers; mean ``log_prob`` (nats) for every likelihood."""
    prediction = predict(model, guide, data, num_draws=num_draws)
    if prediction.labels is None:
        raise ValueError("validation data must come with labels: batches (x, y) or (x, y, mask)")
    values = {"log_prob": prediction.log_prob(prediction.labels).mean().item()}
    if prediction.probs is not None and prediction.probs.dim() == 2:
        values |= metrics.evaluate(prediction.probs, prediction.labels)
    return values


def is_better(monitor: str, value: float, best: float | None) -> bool:
    """Whether a monitored value beats the best so far; NaN never does."""
    if best is None:
        return value == value
    higher = monitor == "log_prob" or metrics.DISPLAY[monitor].higher_is_better
    return value > best if higher else value < best
