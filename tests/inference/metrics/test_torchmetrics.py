"""Metric classes against our functions, over several updates and merged processes, and against torchmetrics' own."""

import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    BinaryAUROC,
    BinaryAveragePrecision,
    MulticlassAccuracy,
    MulticlassCalibrationError,
    MulticlassMatthewsCorrCoef,
)

from probattn.inference import metrics, ood
from probattn.inference.metrics import torchmetrics as classes

PAIRS = {
    classes.AURC: metrics.aurc,
    classes.EAURC: metrics.eaurc,
    classes.FPR95: metrics.fpr95,
    classes.AUROCSuccess: metrics.auroc,
    classes.AUPRSuccess: metrics.aupr_success,
    classes.AUPRError: metrics.aupr_error,
    classes.BrierScore: metrics.brier,
    classes.NegativeLogLikelihood: metrics.nll,
    classes.RankedProbabilityScore: metrics.rps,
}


def predictions(n=200):
    torch.manual_seed(0)
    probs = (2 * torch.randn(n, 4)).softmax(-1)
    return probs, torch.distributions.Categorical(probs).sample()


@pytest.mark.parametrize("kind", PAIRS, ids=lambda kind: kind.__name__)
def test_a_metric_is_our_function_of_all_updates_also_merged_and_reset(kind):
    probs, labels = predictions()
    expected = PAIRS[kind](probs, labels)
    whole, one, other = kind(), kind(), kind()
    for part in (slice(0, 70), slice(70, 100)):
        one.update(probs[part], labels[part])
    other.update(probs[100:], labels[100:])
    whole.update(probs, labels)
    one.merge_state(other)
    assert whole.compute().item() == one.compute().item() == expected
    whole.reset()
    whole.update(probs[:50], labels[:50])
    assert whole.compute().item() == PAIRS[kind](probs[:50], labels[:50])
    assert whole.higher_is_better is (kind in (classes.AUROCSuccess, classes.AUPRSuccess, classes.AUPRError))


def test_a_metric_takes_part_in_a_collection_and_computes_a_batch():
    probs, labels = predictions()
    collection = MetricCollection([classes.AURC(), classes.FPR95()])
    assert collection(probs[:40], labels[:40])["AURC"].item() == metrics.aurc(probs[:40], labels[:40])
    collection.update(probs[40:], labels[40:])
    found = {name: value.item() for name, value in collection.compute().items()}
    assert found == {"AURC": metrics.aurc(probs, labels), "FPR95": metrics.fpr95(probs, labels)}


def test_binary_fpr95_is_that_of_ood_detection():
    torch.manual_seed(1)
    inside, outside = torch.randn(300), torch.randn(200) + 1
    metric = classes.BinaryFPR95()
    metric.update(inside, torch.zeros(300))
    metric.update(outside, torch.ones(200).long())
    assert metric.compute().item() == ood.detection_metrics(inside, outside)["fpr95_out"]
    metric.reset()
    metric.update(inside, torch.zeros(300))
    assert metric.compute().isnan()


def test_the_others_are_those_of_torchmetrics():
    """The metrics that the documentation sends users to torchmetrics for."""
    probs, labels = predictions()
    correct = (probs.argmax(1) == labels).long()
    theirs = {
        metrics.accuracy: MulticlassAccuracy(4, average="micro")(probs, labels),
        metrics.matthews_corrcoef: MulticlassMatthewsCorrCoef(4)(probs, labels),
        metrics.ece: MulticlassCalibrationError(4, n_bins=15, norm="l1")(probs, labels),
        metrics.mce: MulticlassCalibrationError(4, n_bins=15, norm="max")(probs, labels),
        metrics.auroc: BinaryAUROC()(probs.amax(1), correct),
        metrics.aupr_success: BinaryAveragePrecision()(probs.amax(1), correct),
    }
    for function, value in theirs.items():
        assert function(probs, labels) == pytest.approx(value.item(), abs=1e-5), function.__name__


def test_wrong_inputs_are_named_at_the_update():
    with pytest.raises(ValueError, match="apply softmax first"):
        classes.AURC().update(5 * torch.randn(3, 4), torch.zeros(3).long())
    with pytest.raises(ValueError, match="same shape"):
        classes.BinaryFPR95().update(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match="0 for negative ones"):
        classes.BinaryFPR95().update(torch.zeros(3), torch.tensor([0, 1, 2]))
