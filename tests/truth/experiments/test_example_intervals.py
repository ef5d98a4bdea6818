"""Metrics on resampled test examples, against the metrics of the resamples themselves."""

from dataclasses import replace

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from evaluated_runs import random_prediction
from metric_cases import predicted
from scipy import stats

from probattn.experiments.evaluation.example_intervals import (
    draw_counts,
    metric_intervals,
    resampled_metrics,
)
from probattn.experiments.evaluation.kept_predictions import example_frame
from probattn.inference import Prediction, metrics


def numbers(n=60):
    torch.manual_seed(0)
    law = dist.Normal(torch.randn(3, n, 1), 0.5 + torch.rand(3, n, 1)).to_event(1)
    return replace(predicted(law), labels=torch.randn(n, 1))


@pytest.mark.parametrize("prediction", [random_prediction(150, 4), numbers()])
def test_each_value_is_the_metric_of_its_resample(prediction):
    counts = draw_counts(len(prediction), resamples=120, seed=7)
    values = resampled_metrics(example_frame(prediction), counts)
    assert len(values) == (5 if prediction.probs is None else 7)
    draws = np.random.default_rng(7).integers(len(prediction), size=(120, len(prediction)))
    for number in (0, 1, 119):
        expected = metrics.evaluate(prediction[torch.as_tensor(draws[number])])
        resample = {key: value[number] for key, value in values.items()}
        assert resample == pytest.approx({key: expected[key] for key in resample}, rel=1e-6)


def test_intervals_cover_the_truth_as_often_as_they_say():
    """Brier scores of 100 samples of a calibrated network, whose expected score is known."""
    inside = 0
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        probs = torch.tensor([[0.8, 0.2]], dtype=torch.float64).expand(200, 2)
        prediction = Prediction(
            probs=probs, labels=(torch.rand(200, generator=generator) > 0.8).long()
        )
        low, high = metric_intervals(
            prediction, {"brier": metrics.brier(probs, prediction.labels)}
        )["brier"]
        inside += low <= 2 * 0.8 * 0.2 <= high
    assert stats.binomtest(inside, 60, 0.95).pvalue > 0.001
