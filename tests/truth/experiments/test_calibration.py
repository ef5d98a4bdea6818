"""Decisions of a calibration, by hand, and on imbalanced classes."""

import math

import pytest
import torch
from scipy.stats import binomtest

from probattn.experiments.evaluation.calibration import Calibration
from probattn.inference import CheckpointError, Prediction, conformal

COMMON = {"weights": "digest", "num_samples": 10, "seed": 0}


def imbalanced(seed, counts=(1800, 900, 300)):
    """Return a prediction that takes most examples of the last class for the first."""
    torch.manual_seed(seed)
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
    logits = torch.randn(len(labels), 3) + 3 * torch.nn.functional.one_hot(labels, 3)
    logits[labels == 2, 0] += 3.5
    return Prediction(probs=logits.softmax(-1), labels=labels)


def test_by_class_sets_cover_the_rare_class_that_plain_sets_miss():
    calibration = Calibration.fit(imbalanced(0), **COMMON)
    rows = calibration.by_class(imbalanced(1), ("ship", "frog", "cat"))
    assert {name: row["n"] for name, row in rows.items()} == {"ship": 1800, "frog": 900, "cat": 300}
    assert rows["cat"]["accuracy"] < 0.5
    assert rows["cat"]["coverage"] < 0.8
    assert all(row["coverage_by_class"] == pytest.approx(0.9, abs=0.05) for row in rows.values())
    evaluated = calibration.evaluate(imbalanced(1))
    assert evaluated["plain sets"]["coverage"] == pytest.approx(0.9, abs=0.03)
    assert evaluated["by-class sets"]["size"] > evaluated["plain sets"]["size"]


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("plain", conformal.LAC),
        ("by-class", conformal.ByClass),
        ("aps", conformal.APS),
        ("raps", conformal.RAPS),
    ],
)
def test_sets_of_each_kind_are_those_of_their_predictor_on_scaled_probabilities(kind, method):
    known, new = imbalanced(0), imbalanced(1)
    calibration = Calibration.fit(known, **COMMON, level=0.95)
    scaled = calibration.apply(new)
    expected = method(alpha=0.05).fit_prediction(calibration.apply(known))
    assert torch.equal(calibration.sets(scaled.probs, kind=kind), expected.sets(scaled.probs))
    coverage = expected.evaluate(scaled.probs, new.labels)["coverage"]
    assert calibration.evaluate(new)[f"{kind} sets"]["coverage"] == pytest.approx(coverage)


def test_sets_that_an_older_calibration_lacks_are_an_error():
    older = Calibration(**COMMON, temperature=1.0, confidence=0.5, class_quantiles=(1.0,) * 3)
    with pytest.raises(ValueError, match="again"):
        older.sets(torch.eye(3), kind="aps")


def test_abstention_is_counted_with_its_exact_interval():
    calibration, test = Calibration.fit(imbalanced(0), **COMMON, max_risk=0.1), imbalanced(1)
    accepted = calibration.apply(test).probs.amax(1) >= calibration.confidence
    wrong = int((test.predicted != test.labels)[accepted].sum())
    values = calibration.evaluate(test)["abstention"]
    interval = binomtest(wrong, int(accepted.sum())).proportion_ci(method="exact")
    assert values["accepted"] == accepted.sum()
    assert (values["risk"], values["low"], values["high"]) == pytest.approx(
        (wrong / values["accepted"], interval.low, interval.high)
    )
    nothing = Calibration(
        **COMMON, temperature=1.0, confidence=math.inf, class_quantiles=(1.0,) * 3
    )
    assert nothing.evaluate(test)["abstention"]["accepted"] == 0


@pytest.mark.parametrize("quantile", [0.5, math.inf])
def test_a_calibration_is_read_back_for_its_own_weights_only(tmp_path, quantile):
    of_classes = {"temperature": 1.5, "class_quantiles": (0.1, math.inf), "confidence": 0.5}
    calibration = Calibration(**COMMON, quantile=quantile, **of_classes)
    calibration.save(tmp_path)
    assert Calibration.load(tmp_path, weights="digest", classes=2) == calibration
    with pytest.raises(CheckpointError, match="other weights"):
        Calibration.load(tmp_path, weights="another", classes=2)
