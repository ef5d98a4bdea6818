"""Dispatch of a prediction to the metrics of its kind of likelihood."""

import torch

from probattn.inference.metrics import multilabel, regression
from probattn.inference.metrics.classification import evaluate, rps
from probattn.inference.prediction.marginals import unwrap
from probattn.inference.prediction.result import Prediction


def evaluate_prediction(prediction: Prediction) -> dict[str, float]:
    """Compute the metrics that suit a prediction's likelihood, with the labels that it holds.

    Classes: :func:`evaluate`, and ``rps`` if they are ordered. Binary labels:
    :func:`probattn.inference.multilabel.evaluate`. Numbers: :func:`probattn.inference.regression.evaluate`. With a
    label per token, metrics are over all real tokens.

    Raises:
        ValueError: a prediction without labels, or as those functions raise.
    """
    if prediction.labels is None:
        raise ValueError("metrics need labels: predict batches (x, y) or (x, y, mask)")
    if prediction.mask is not None:
        prediction = prediction.tokens()
    if prediction.probs is not None:
        values = evaluate(prediction.probs, prediction.labels)
        return values | {"rps": rps(prediction.probs, prediction.labels)} if prediction.ordered else values
    if is_binary(prediction):
        return multilabel.evaluate(*(each.reshape(len(each), -1) for each in (prediction.mean, prediction.labels)))
    return regression.evaluate(prediction, prediction.labels)


def is_binary(prediction: Prediction) -> bool:
    """Return True for predictions of labels that are 0 or 1 (Bernoulli likelihoods)."""
    return bool(prediction.components) and isinstance(unwrap(prediction.components[0]), torch.distributions.Bernoulli)
