"""Metrics chosen by the kind of likelihood."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from probattn.inference import Prediction, metrics
from probattn.inference.metrics import regression


def random_predictions(seed, n=400, classes=5):
    """Skilled but miscalibrated probabilities, without ties, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    logits = rng.normal(size=(n, classes)) + 1.5 * np.eye(classes)[labels]
    return torch.tensor(2 * logits).softmax(dim=1), torch.tensor(labels)


def test_metrics_follow_the_kind_of_likelihood():
    probs, labels = random_predictions(4, n=60)
    assert metrics.evaluate(Prediction(probs=probs, labels=labels)) == metrics.evaluate(probs, labels)
    ordered = metrics.evaluate(Prediction(probs=probs, labels=labels, ordered=True))
    assert ordered == metrics.evaluate(probs, labels) | {"rps": metrics.rps(probs, labels)}
    p, y = torch.rand(2, 60, 3), torch.randint(2, (60, 3))
    binary = Prediction(mean=p.mean(0), labels=y, components=(dist.Bernoulli(p).to_event(1),))
    assert metrics.evaluate(binary) == metrics.label_metrics(p.mean(0), y)
    law = dist.Poisson(3 * p).to_event(1)
    counts = Prediction(mean=law.mean.mean(0), labels=law.sample()[0], components=(law,))
    assert metrics.evaluate(counts) == regression.evaluate(counts, counts.labels)
    for each in (ordered, *map(metrics.evaluate, (binary, counts))):
        unknown = set(each) - set(metrics.MONITORS)
        assert unknown <= {"coverage_50", "coverage_90"}  # which have no better direction
    with pytest.raises(ValueError, match="metrics need labels"):
        metrics.evaluate(Prediction(probs=probs))
