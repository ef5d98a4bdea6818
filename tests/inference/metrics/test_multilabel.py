"""Metrics of binary labels against scikit-learn and arithmetic."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn

from probattn.inference import metrics

RNG = np.random.default_rng(0)
TRUTH = RNG.integers(2, size=(60, 3))
PROBS = np.clip(0.3 * TRUTH + RNG.uniform(size=(60, 3)) * 0.7, 0, 1).round(2)  # with ties
GIVEN = torch.as_tensor(PROBS), torch.as_tensor(TRUTH)


def test_every_metric_is_scikit_learns():
    columns = range(3)
    auroc = [sklearn.roc_auc_score(TRUTH[:, c], PROBS[:, c]) for c in columns]
    nll = [sklearn.log_loss(TRUTH[:, c], PROBS[:, c], labels=[0, 1]) for c in columns]
    brier = [sklearn.brier_score_loss(TRUTH[:, c], PROBS[:, c]) for c in columns]
    expected = {
        "label_accuracy": 1 - sklearn.hamming_loss(TRUTH, PROBS > 0.5),
        "exact_match": sklearn.accuracy_score(TRUTH, PROBS > 0.5),
        "label_nll": np.mean(nll),
        "label_brier": np.mean(brier),
        "label_auroc": np.mean(auroc),
    }
    assert metrics.label_metrics(*GIVEN) == pytest.approx(expected, rel=1e-6)


def test_probabilities_near_one_keep_their_order():
    probs = torch.tensor([[1 - 1e-9], [1 - 2e-9], [1 - 3e-9], [1 - 4e-9]], dtype=torch.float64)
    labels = torch.tensor([[1], [0], [1], [0]])
    assert metrics.label_metrics(probs, labels)["label_auroc"] == pytest.approx(0.75)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_labels_of_any_dtype(dtype):
    assert metrics.label_metrics(GIVEN[0], GIVEN[1].to(dtype)) == metrics.label_metrics(*GIVEN)


def test_a_label_without_both_values_has_no_auroc_and_is_left_out_of_the_mean():
    probs, labels = GIVEN[0].clone(), GIVEN[1].clone()
    labels[:, 1] = 1
    alone = [metrics.label_metrics(probs[:, [c]], labels[:, [c]])["label_auroc"] for c in range(3)]
    assert math.isnan(alone[1])
    assert metrics.label_metrics(probs, labels)["label_auroc"] == pytest.approx((alone[0] + alone[2]) / 2)
    assert math.isnan(metrics.label_metrics(probs, torch.ones(60, 3))["label_auroc"])


def test_a_sure_mistake_costs_a_finite_amount():
    value = metrics.label_metrics(torch.tensor([[0.0]]), torch.tensor([[1]]))["label_nll"]
    assert value == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (torch.ones(3, 2), torch.ones(3, 1), "same shape"),
        (torch.ones(0, 2), torch.ones(0, 2), "examples, labels"),
        (torch.full((1, 1), 1.5), torch.ones(1, 1), r"lie in \[0, 1\]"),
        (torch.full((1, 1), math.nan), torch.ones(1, 1), r"lie in \[0, 1\]"),
        (torch.ones(1, 1), torch.full((1, 1), 2), "are 0 or 1"),
    ],
)
def test_what_cannot_be_scored_is_refused(probs, labels, message):
    with pytest.raises(ValueError, match=message):
        metrics.label_metrics(probs, labels)
