"""Calibration errors against hand computation, brute force and torchmetrics."""

import numpy as np
import pytest
import torch
from metric_cases import LABELS, PROBS, predictions, random_predictions
from torchmetrics.functional.classification import multiclass_calibration_error

from probattn.inference import metrics

# Top labels 0 0 1 2 1 with confidences .95 .9 .8 .7 .6: right, wrong, right, right, wrong.


def brute_force_calibration(probs, labels, bins):
    """ECE and MCE by a loop over [left, right) bins, the last one closed."""
    confidence, top = (x.numpy() for x in probs.max(dim=1))
    correct = top == labels.numpy()
    gaps, weights = [], []
    for b in range(bins):
        inside = (confidence >= b / bins) & ((confidence < (b + 1) / bins) | (b == bins - 1))
        if inside.any():
            gaps.append(abs(correct[inside].mean() - confidence[inside].mean()))
            weights.append(inside.mean())
    return np.dot(gaps, weights), max(gaps)


def test_calibration_by_hand():
    # bins=4. [.5, .75): .6 wrong, .7 right, so |1/2 − .65| = .15. [.75, 1]: .8 right, .9 wrong, .95 right, so
    # |2/3 − 2.65/3| = .65/3. Weights 2/5 and 3/5.
    assert metrics.ece(PROBS, LABELS, bins=4) == pytest.approx(0.4 * 0.15 + 0.6 * 0.65 / 3, abs=1e-6)
    assert metrics.mce(PROBS, LABELS, bins=4) == pytest.approx(0.65 / 3, abs=1e-6)


def test_calibration_takes_absolute_gaps_per_bin():
    # bins=2. [0, .5): .4 right, gap .6. [.5, 1]: .9 wrong and .7 right, gap |1/2 − .8| = .3 the other way.
    probs = torch.tensor([[0.40, 0.35, 0.25], [0.9, 0.05, 0.05], [0.7, 0.2, 0.1]])
    labels = torch.tensor([0, 1, 0])
    assert metrics.ece(probs, labels, bins=2) == pytest.approx(0.6 / 3 + 0.3 * 2 / 3, abs=1e-6)
    assert metrics.mce(probs, labels, bins=2) == pytest.approx(0.6, abs=1e-6)


def test_calibration_bins_hold_their_left_edge():
    # bins=2. .5 right is binned with .75 wrong, not with .375 right: |1/2 − .625| · 2/3 + .625 / 3.
    probs = torch.tensor([[0.5, 0.25, 0.25], [0.75, 0.125, 0.125], [0.375, 0.3125, 0.3125]])
    labels = torch.tensor([0, 1, 0])
    assert metrics.ece(probs, labels, bins=2) == pytest.approx(0.125 * 2 / 3 + 0.625 / 3, abs=1e-6)


def test_calibration_defaults_to_fifteen_bins():
    # .70 wrong and .74 right lie on either side of 11/15 = .7333.
    probs, labels = predictions([0.70, 0.74], [0, 1])
    assert metrics.ece(probs, labels) == pytest.approx((0.70 + 0.26) / 2, abs=1e-6)
    assert metrics.mce(probs, labels) == pytest.approx(0.70, abs=1e-6)
    # [11/16, 12/16) = [.6875, .75) holds both.
    assert metrics.ece(probs, labels, bins=16) == pytest.approx(abs(0.5 - 0.72), abs=1e-6)


def on_edges(bins, dtype):
    """Confidences k / bins among as many classes, right and wrong in turn, and their bins."""
    k = torch.arange(1, bins + 1)
    confidence = k.to(dtype) / bins
    rest = ((1 - confidence) / max(bins - 1, 1)).unsqueeze(1).expand(-1, bins - 1)
    return torch.cat([confidence.unsqueeze(1), rest], dim=1), k % 2, k.clamp(max=bins - 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bins", [10, 15, 20])
def test_a_confidence_on_an_edge_is_in_the_bin_above(bins, dtype):
    """All of k / bins, one by one beside an example within that bin, and all at once; 1 is in the last bin."""
    probs, labels, index = on_edges(bins, dtype)
    gaps = (1 - labels.double()) - probs[:, 0].double()  # label 0 is right
    for k in range(1, bins):
        middle = torch.full((1, bins), (1 - (k + 0.5) / bins) / (bins - 1), dtype=dtype)
        middle[0, 0] = (k + 0.5) / bins
        if middle[0, 0] <= middle[0, 1]:
            continue  # not the most probable class
        pair, of_pair = torch.cat([probs[k - 1 : k], middle]), torch.tensor([labels[k - 1].item(), 0])
        expected = abs(gaps[k - 1].item() + 1 - middle[0, 0].double().item()) / 2
        assert metrics.ece(pair, of_pair, bins=bins) == pytest.approx(expected, abs=1e-12)
        assert metrics.mce(pair, of_pair, bins=bins) == pytest.approx(expected, abs=1e-12)
    sums = np.array([gaps[index == b].sum().item() for b in range(bins)])
    counts = np.bincount(index.numpy(), minlength=bins)
    assert metrics.ece(probs, labels, bins=bins) == pytest.approx(np.abs(sums).sum() / bins, abs=1e-12)
    assert metrics.mce(probs, labels, bins=bins) == pytest.approx(np.abs(sums / counts.clip(1)).max(), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_calibration_agrees_with_torchmetrics_away_from_edges(seed):
    probs, labels = random_predictions(seed)
    for function, norm in ((metrics.ece, "l1"), (metrics.mce, "max")):
        expected = multiclass_calibration_error(probs, labels, probs.shape[1], n_bins=15, norm=norm)
        assert function(probs, labels) == pytest.approx(expected.item(), abs=1e-6)


def test_certainty_shares_the_last_bin():
    # 1 wrong and .95 right are both in the last bin: |1/2 − .975|. Apart they would give (1 + .05) / 2.
    probs, labels = predictions([1.0, 0.95], [0, 1])
    assert metrics.ece(probs, labels) == pytest.approx(0.475, abs=1e-6)
    assert metrics.mce(probs, labels) == pytest.approx(0.475, abs=1e-6)


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("seed", range(3))
def test_calibration_agrees_with_brute_force(seed, bins):
    probs, labels = random_predictions(seed)
    ece, mce = brute_force_calibration(probs, labels, bins)
    assert metrics.ece(probs, labels, bins=bins) == pytest.approx(ece, abs=1e-12)
    assert metrics.mce(probs, labels, bins=bins) == pytest.approx(mce, abs=1e-12)
