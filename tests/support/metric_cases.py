"""Predictions and labels for tests of metrics and decisions."""

import numpy as np
import torch

from probattn.inference import Prediction

PROBS = torch.tensor(
    [[0.95, 0.03, 0.02], [0.90, 0.04, 0.06], [0.1, 0.8, 0.1], [0.2, 0.1, 0.7], [0.3, 0.6, 0.1]],
    dtype=torch.float64,
)
LABELS = torch.tensor([0, 2, 1, 2, 0])
"""Top labels 0 0 1 2 1 with confidences .95 .9 .8 .7 .6: right, wrong, right, right, wrong."""


def predictions(confidence, correct):
    """Three-class probabilities, top label 0 with these confidences (> 1/2), and labels 0 (right)
    or 1."""
    confidence = torch.as_tensor(confidence, dtype=torch.float64)
    probs = torch.stack([confidence, 0.75 * (1 - confidence), 0.25 * (1 - confidence)], dim=1)
    return probs, 1 - torch.as_tensor(correct, dtype=torch.int64)


def random_predictions(seed, n=400, classes=5):
    """Skilled but miscalibrated probabilities, without ties, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    logits = rng.normal(size=(n, classes)) + 1.5 * np.eye(classes)[labels]
    return torch.tensor(2 * logits).softmax(dim=1), torch.tensor(labels)


def detection(positive, score):
    """AUROC, average precision, and the least false positive rate at a true positive rate of 95 %,
    by definition."""
    inside, outside = np.sort(score[positive]), np.sort(score[~positive])
    below, up_to = (np.searchsorted(outside, inside, side=side) for side in ("left", "right"))
    true, false = (
        len(inside) - np.searchsorted(inside, inside),
        len(outside) - below,
    )  # as high or higher
    precision, is_enough = (true / (true + false)).mean(), 100 * true >= 95 * len(inside)
    return (
        (below + up_to).mean() / 2 / len(outside),
        precision,
        false[is_enough].min() / len(outside),
    )


def predicted(law):
    """The prediction of numbers of a likelihood with batch shape ``(S, n)``."""
    means, variances = law.mean, law.variance
    variance = variances.mean(0) + means.var(0, correction=0)
    return Prediction(mean=means.mean(0), variance=variance, components=(law,))
