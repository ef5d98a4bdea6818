"""Inputs of metrics, and errors for those that would silently give a wrong number."""

import math

import pyro.distributions as dist
import pytest
import torch
from metric_cases import LABELS, predicted, predictions, random_predictions

from probattn.inference import Prediction, metrics
from probattn.inference.metrics import ood, regression

HALVES, ZEROS = torch.full((4, 2), 0.5), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("probs", "labels"),
    [
        (HALVES.expand(10, 4, 2), ZEROS),
        (HALVES, ZEROS[:3]),
        (HALVES, HALVES.long()),
        (HALVES.long(), ZEROS),
        (HALVES, ZEROS.float()),
        (HALVES[:0], ZEROS[:0]),
        (HALVES[:, :1], ZEROS),
        (HALVES, ZEROS - 1),
        (HALVES, ZEROS + 2),
        (HALVES.index_fill(0, ZEROS[:1], math.nan), ZEROS),
        (torch.tensor([[3.0, -2.0]]), ZEROS[:1]),
        (HALVES * 0.9, ZEROS),
        ((HALVES * 0.9).bfloat16(), ZEROS),
        (torch.tensor([[0.5, 0.5], [0.5, 0.5015]]), ZEROS[:2]),
    ],
)
def test_what_is_no_prediction_of_classes_is_an_error(probs, labels):
    of_classes = [metric.function for metric in metrics.OF_CLASSES.values()]
    for metric in (metrics.evaluate, metrics.risk_coverage, *of_classes, metrics.rps):
        with pytest.raises(ValueError, match=r"probs|labels"):
            metric(probs, labels)


@pytest.mark.parametrize(
    ("probs", "labels"),
    [
        (torch.ones(3, 2), torch.ones(3, 1)),
        (torch.ones(0, 2), torch.ones(0, 2)),
        (torch.full((1, 1), 1.5), torch.ones(1, 1)),
        (torch.full((1, 1), math.nan), torch.ones(1, 1)),
        (torch.ones(1, 1), torch.full((1, 1), 2)),
    ],
)
def test_what_is_no_prediction_of_binary_labels_is_an_error(probs, labels):
    with pytest.raises(ValueError, match="probs"):
        metrics.label_metrics(probs, labels)


def test_labels_of_numbers_that_would_broadcast_or_are_not_finite_are_errors():
    prediction = predicted(dist.Normal(torch.zeros(2, 2, 1), 1.0).to_event(1))
    for labels in (
        torch.zeros(1, 1),
        torch.zeros(2),
        torch.zeros(2, 2),
        torch.tensor([[1.0], [math.nan]]),
    ):
        with pytest.raises(ValueError, match="labels"):
            regression.rmse(prediction, labels)
    with pytest.raises(ValueError, match="numbers"):
        regression.rmse(Prediction(probs=HALVES), HALVES)
    with pytest.raises(ValueError, match="labels"):
        metrics.evaluate(prediction)


def test_detectors_take_one_class_per_example():
    prediction = Prediction(probs=HALVES)
    for probs in (None, HALVES.expand(2, 4, 2)):
        with pytest.raises(ValueError, match="probabilities"):
            ood.scores(Prediction(probs=probs), fitted_on=prediction)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_float64(dtype):
    # Multiples of 1/256 below 1/2, of 1/64 above: exact in every dtype.
    probs, labels = predictions(torch.arange(33, 64).repeat(20) / 64, torch.arange(620) % 3 == 0)
    assert metrics.evaluate(probs.to(dtype), labels) == metrics.evaluate(probs, labels)
    zero = torch.tensor([[1.0, 0.0]], dtype=dtype)
    assert metrics.nll(zero, torch.tensor([1])) == pytest.approx(-math.log(torch.finfo(dtype).tiny))


def test_rounding_is_forgiven():
    probs, labels = random_predictions(0)
    rounded = probs.bfloat16()
    assert (rounded.double().sum(dim=1) - 1).abs().max() > 1e-3
    assert metrics.brier(rounded, labels) == pytest.approx(metrics.brier(probs, labels), abs=5e-3)
    exact = metrics.evaluate(torch.tensor([[1.0, 0.0], [0.3, 0.7]]), LABELS[:2] % 2)
    assert (
        metrics.evaluate(torch.tensor([[1.00005, -0.00005], [0.3, 0.7]]), LABELS[:2] % 2) == exact
    )


def test_metrics_follow_the_kind_of_likelihood():
    probs, labels = random_predictions(4, n=60)
    of_classes = metrics.evaluate(probs, labels)
    assert metrics.evaluate(probs.numpy(), labels.numpy()) == of_classes
    assert metrics.evaluate(Prediction(probs=probs, labels=labels)) == of_classes
    assert metrics.evaluate(Prediction(probs=probs, labels=labels.flip(0)), labels) == of_classes
    ordered = metrics.evaluate(Prediction(probs=probs, labels=labels, ordered=True))
    assert ordered == of_classes | {"rps": metrics.rps(probs, labels)}
    p, y = torch.rand(2, 60, 3), torch.randint(2, (60, 3))
    binary = Prediction(mean=p.mean(0), labels=y, components=(dist.Bernoulli(p).to_event(1),))
    assert metrics.evaluate(binary) == metrics.label_metrics(p.mean(0), y)
    law = dist.Poisson(3 * p).to_event(1)
    counts = Prediction(mean=law.mean.mean(0), labels=law.sample()[0], components=(law,))
    assert metrics.evaluate(counts) == regression.evaluate(counts, counts.labels)


def test_what_chooses_the_best_epoch_favours_the_better_classifier():
    def evaluated(confidence, right):
        probs, labels = predictions(confidence, right)
        roll = (
            torch.arange(5) % 2
        )  # two names of the classes in turn, so that predictions are of two classes
        rows = torch.stack([row.roll(int(by)) for row, by in zip(probs, roll, strict=True)])
        return metrics.evaluate(rows, (labels + roll) % 3)

    good = evaluated([0.97, 0.97, 0.97, 0.64, 0.62], [1, 1, 1, 1, 0])
    bad = evaluated([0.99, 0.98, 0.97, 0.90, 0.85], [0, 0, 0, 1, 1])
    for name, value in good.items():
        assert (value > bad[name]) if metrics.MONITORS[name] else (value < bad[name]), name
