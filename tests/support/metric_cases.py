"""Probabilities and labels for tests of metrics."""

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

from probattn.inference import metrics

PROBS = torch.tensor(
    [[0.95, 0.03, 0.02], [0.90, 0.04, 0.06], [0.1, 0.8, 0.1], [0.2, 0.1, 0.7], [0.3, 0.6, 0.1]],
    dtype=torch.float64,
)


LABELS = torch.tensor([0, 2, 1, 2, 0])


def predictions(confidence, correct):
    """Three-class probabilities, top label 0 with these confidences (> 1/2), and labels 0 (right) or 1."""
    confidence = torch.as_tensor(confidence, dtype=torch.float64)
    probs = torch.stack([confidence, 0.75 * (1 - confidence), 0.25 * (1 - confidence)], dim=1)
    return probs, 1 - torch.as_tensor(correct, dtype=torch.int64)


def random_predictions(seed, n=400, classes=5):
    """Skilled but miscalibrated probabilities, without ties, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    logits = rng.normal(size=(n, classes)) + 1.5 * np.eye(classes)[labels]
    return torch.tensor(2 * logits).softmax(dim=1), torch.tensor(labels)


FUNCTIONS = {function.__name__: function for function in metrics.OF_CLASSES}


DETECTION = ("auroc", "aupr_success", "aupr_error", "fpr95")


outcomes = st.lists(st.tuples(st.integers(33, 64).map(lambda i: i / 64), st.booleans()), min_size=1, max_size=25)


property_test = settings(deadline=None, max_examples=60)
