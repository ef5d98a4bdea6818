"""The metrics that belong to a prediction, chosen by the kind of its likelihood."""

import torch

from probattn.inference.metrics import multilabel, regression
from probattn.inference.metrics.classification import evaluate, rps
from probattn.inference.prediction.marginals import unwrap
from probattn.inference.prediction.result import Prediction


def evaluate_prediction(prediction: Prediction) -> dict[str, float]:
    """The metrics of a prediction that knows its labels, by the kind of its likelihood.

    Of classes :func:`evaluate`, and of ordered ones ``rps`` too; of binary labels
    :func:`probattn.inference.multilabel.evaluate`; of numbers :func:`probattn.inference.regression.evaluate`. Where
    every token has a label, over all real tokens alike.

    Raises:
        ValueError: a prediction without labels, and what those functions refuse.
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
    """True for predictions of labels that are 0 or 1."""
    return bool(prediction.components) and isinstance(unwrap(prediction.components[0]), torch.distributions.Bernoulli)
