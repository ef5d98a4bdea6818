"""Metrics of a prediction by the kind of its likelihood."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from probattn.inference.metrics import multilabel, regression
from probattn.inference.metrics.classification import class_metrics, rps
from probattn.inference.prediction.result import Prediction


def evaluate(
    prediction: Prediction | Tensor | np.ndarray, labels: Tensor | np.ndarray | None = None, *, bins: int = 15
) -> dict[str, float]:
    """Compute the metrics that suit a prediction's likelihood, unscaled.

    Classes: :func:`~probattn.inference.metrics.classification.class_metrics`, and ``rps`` if they are ordered. Binary
    labels: :func:`probattn.inference.multilabel.evaluate`. Numbers: :func:`probattn.inference.regression.evaluate`.
    With a label per token, metrics are over all real tokens.

    Args:
        prediction: of :func:`~probattn.inference.predict`, or mean probabilities of classes ``(n, classes)``.
        labels: ``(n, ...)``; by default those that the prediction holds, which are those of its loader.
        bins: number of bins of ECE and MCE.

    Raises:
        ValueError: no labels; invalid inputs.
    """
    if labels is not None:
        labels = torch.as_tensor(labels)
    if not isinstance(prediction, Prediction):
        probs = torch.as_tensor(prediction)
        if labels is None:
            raise ValueError("metrics of probabilities need labels: evaluate(probs, labels)")
        return class_metrics(probs, labels, bins=bins)
    labels = prediction.labels if labels is None else labels
    if labels is None:
        raise ValueError(
            "metrics need labels, and this prediction has none: evaluate(prediction, labels), or predict batches (x, y)"
        )
    if prediction.mask is not None:
        prediction = replace(prediction, labels=labels).tokens()
        labels = prediction.labels
    if prediction.probs is not None:
        values = class_metrics(prediction.probs, labels, bins=bins)
        return values | {"rps": rps(prediction.probs, labels)} if prediction.ordered else values
    if prediction.is_binary:
        return multilabel.evaluate(*(each.reshape(len(each), -1) for each in (prediction.mean, labels)))
    return regression.evaluate(prediction, labels)
