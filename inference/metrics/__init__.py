"""Metrics of predictions: of classes in ``classes``, of several binary labels in ``binary_labels``,
of numbers in ``regression``, of OOD scores in ``ood``.

May import ``prediction``, ``distributed`` and ``io``.
"""

from dataclasses import replace

import torch
from torch import Tensor

from probattn.inference.metrics import ood as ood
from probattn.inference.metrics import regression
from probattn.inference.metrics.binary_labels import OF_LABELS as OF_LABELS
from probattn.inference.metrics.binary_labels import exact_match as exact_match
from probattn.inference.metrics.binary_labels import label_accuracy as label_accuracy
from probattn.inference.metrics.binary_labels import label_auroc as label_auroc
from probattn.inference.metrics.binary_labels import label_brier as label_brier
from probattn.inference.metrics.binary_labels import label_metrics as label_metrics
from probattn.inference.metrics.binary_labels import label_nll as label_nll
from probattn.inference.metrics.classes import accuracy as accuracy
from probattn.inference.metrics.classes import aupr_error as aupr_error
from probattn.inference.metrics.classes import aupr_success as aupr_success
from probattn.inference.metrics.classes import aurc as aurc
from probattn.inference.metrics.classes import auroc as auroc
from probattn.inference.metrics.classes import brier as brier
from probattn.inference.metrics.classes import confidence_and_correct as confidence_and_correct
from probattn.inference.metrics.classes import confidence_bins as confidence_bins
from probattn.inference.metrics.classes import eaurc as eaurc
from probattn.inference.metrics.classes import ece as ece
from probattn.inference.metrics.classes import fpr95 as fpr95
from probattn.inference.metrics.classes import mcc as mcc
from probattn.inference.metrics.classes import mce as mce
from probattn.inference.metrics.classes import nll as nll
from probattn.inference.metrics.classes import risk_coverage as risk_coverage
from probattn.inference.metrics.classes import rps as rps
from probattn.inference.metrics.classes import valid_probs as valid_probs
from probattn.inference.metrics.classes import validate as validate
from probattn.inference.metrics.metric import Metric as Metric
from probattn.inference.prediction.result import Prediction

OF_CLASSES = {
    "accuracy": Metric(accuracy, "ACC", 100, True, "share of right answers"),
    "mcc": Metric(
        mcc,
        "MCC",
        100,
        True,
        "Matthews correlation of answers and truth: 0 knows nothing of the question, 100 is always "
        "right",
    ),
    "aurc": Metric(
        aurc,
        "AURC",
        1000,
        False,
        "error rate of the most confident answers, averaged over how many are accepted",
    ),
    "eaurc": Metric(
        eaurc,
        "E-AURC",
        1000,
        False,
        "AURC minus that of the best possible order of the same answers",
        in_tables=False,
    ),
    "auroc": Metric(
        auroc,
        "AUROC",
        100,
        True,
        "chance that a right answer has more confidence than a wrong one; 50 is guessing",
    ),
    "aupr_success": Metric(
        aupr_success,
        "AUPR-Success",
        100,
        True,
        "precision of confidence as a detector of right answers, averaged over recall",
        in_tables=False,
    ),
    "aupr_error": Metric(
        aupr_error,
        "AUPR-Error",
        100,
        True,
        "precision of doubt as a detector of wrong answers, averaged over recall",
        in_tables=False,
    ),
    "fpr95": Metric(
        fpr95,
        "FPR95",
        100,
        False,
        "share of the wrong answers that pass when 95 % of the right ones are accepted",
    ),
    "ece": Metric(
        ece,
        "ECE",
        100,
        False,
        "calibration error: how far confidence is from accuracy, averaged over 15 bins",
    ),
    "mce": Metric(
        mce, "MCE", 100, False, "calibration error of the worst of 15 bins", in_tables=False
    ),
    "nll": Metric(nll, "NLL", 10, False, "mean negative log-probability of the truth, in nats"),
    "brier": Metric(
        brier,
        "Brier",
        100,
        False,
        "squared distance from the probabilities to the truth, summed over classes",
    ),
}
"""Metrics of class probabilities and labels, in the order of :func:`evaluate` and of tables."""

OF_ORDERED = {
    "rps": Metric(
        rps,
        "RPS",
        1,
        False,
        "squared distance between the probabilities of at most a class, summed over classes",
        in_tables=False,
    )
}
"""Those of ordered classes, in addition."""

OF_NUMBERS = regression.OF_NUMBERS
"""Metrics of a prediction of numbers and its labels."""

MONITORS: dict[str, bool] = {"log_prob": True} | {
    name: metric.higher_is_better
    for name, metric in (OF_CLASSES | OF_ORDERED | OF_NUMBERS | OF_LABELS).items()
    if metric.higher_is_better is not None
}
"""Metrics that may choose the best epoch: True if higher is better. Coverage has no direction."""


def evaluate(prediction: Prediction | Tensor, labels: Tensor | None = None) -> dict[str, float]:
    """Compute the metrics that suit a prediction's likelihood, unscaled.

    Classes: those of :data:`OF_CLASSES`, ``rps`` if they are ordered. Binary labels:
    :func:`label_metrics`. Numbers: :func:`~probattn.inference.metrics.regression.evaluate`. With a
    label per token, metrics are over all real tokens.

    Args:
        prediction: of :func:`~probattn.inference.predict`, or mean probabilities of classes
            ``(n, classes)``.
        labels: ``(n, ...)``; by default those that the prediction holds, which are those of its
            loader.

    Raises:
        ValueError: no labels; invalid inputs.
    """
    if not isinstance(prediction, Prediction):
        prediction = Prediction(probs=torch.as_tensor(prediction))
    labels = prediction.labels if labels is None else torch.as_tensor(labels)
    if labels is None:
        raise ValueError(
            "metrics need labels: evaluate(prediction, labels), or predict batches (x, y)"
        )
    if prediction.mask is not None:
        prediction = replace(prediction, labels=labels).tokens()
        labels = prediction.require("labels")
    if prediction.probs is not None:
        of_kind = OF_CLASSES | OF_ORDERED if prediction.ordered else OF_CLASSES
        return {name: metric.function(prediction.probs, labels) for name, metric in of_kind.items()}
    if prediction.is_binary:
        return label_metrics(
            prediction.require("mean").reshape(len(labels), -1), labels.reshape(len(labels), -1)
        )
    return regression.evaluate(prediction, labels)
