"""Detectors and their metrics by hand, by their definitions, and against pytorch-ood."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from metric_cases import detection
from pytorch_ood.detector import EnergyBased, Entropy, KLMatching, MaxSoftmax
from torch.testing import assert_close

from probattn.inference import Prediction
from probattn.inference.metrics import ood

CERTAIN_ONES = ["kl_matching", "max_softmax", "entropy"]
"""Detectors that need the mean probabilities alone."""


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def from_logits(logits):
    """The prediction of one draw."""
    probs = logits.softmax(1)
    entropy = torch.special.entr(probs).sum(1)
    labels = torch.zeros(len(logits), dtype=torch.long)
    return Prediction(
        probs=probs, expected_entropy=entropy, energy=-logits.logsumexp(1), labels=labels
    )


def score(name, prediction):
    return ood.scores(prediction, fitted_on=prediction)[name]


def test_kl_matching_of_zeros_by_hand():
    zeros = Prediction(probs=torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]))
    expected = [0, -math.log(torch.finfo(torch.float32).tiny) - math.log(2)]
    assert ood.kl_matching(zeros, fitted_on=zeros[:1]).tolist() == pytest.approx(expected)


def test_draws_that_are_alike_share_no_information_and_others_do():
    probs = (3 * torch.randn(500, 10)).softmax(1).expand(10, -1, -1)
    prediction = Prediction(
        probs=probs.mean(0), expected_entropy=torch.special.entr(probs).sum(-1).mean(0)
    )
    assert prediction.mutual_information.max() > 0  # rounding
    assert score("mutual_information", prediction).max() == 0
    # Two draws of (½ ± .004, ½ ∓ .004): their mean is even, and each lacks about 2 · .004² nats of
    # ln 2.
    entropy = torch.special.entr(tensor(0.504, 0.496)).sum()
    prediction = Prediction(probs=torch.full((1, 2), 0.5), expected_entropy=entropy.float()[None])
    assert score("mutual_information", prediction).item() == pytest.approx(
        math.log(2) - entropy.item(), abs=2e-7
    )


def test_scores_are_those_of_pytorch_ood():
    logits, valid = 3 * torch.randn(300, 6), 3 * torch.randn(200, 6)
    for name, theirs in (
        ("max_softmax", MaxSoftmax),
        ("entropy", Entropy),
        ("energy", EnergyBased),
    ):
        expected = theirs(None).predict_logits(logits).double() + (
            name == "max_softmax"
        )  # theirs is −confidence
        assert_close(score(name, from_logits(logits)), expected, atol=2e-6, rtol=0)
    for valid_logits in (
        valid,
        valid.index_fill(1, torch.tensor([2]), -20),
    ):  # also with a class never predicted
        expected = KLMatching(None).fit_logits(valid_logits).predict_logits(logits).double()
        matched = ood.kl_matching(from_logits(logits), fitted_on=from_logits(valid_logits))
        assert_close(matched, expected, atol=1e-5, rtol=1e-5)


def brute_force(inside, outside):
    """Every metric by its definition."""
    scores = np.concatenate([inside, outside])
    is_inside = np.arange(len(inside) + len(outside)) < len(inside)
    auroc, aupr_in, fpr95_in = detection(is_inside, -scores)
    _, aupr_out, fpr95_out = detection(~is_inside, scores)
    return {
        "auroc": auroc,
        "aupr_in": aupr_in,
        "aupr_out": aupr_out,
        "fpr95_in": fpr95_in,
        "fpr95_out": fpr95_out,
    }


# Exact in binary, with many ties, on both sides of [0, 1].
values = st.lists(st.integers(-8, 8).map(lambda i: i / 4), min_size=1, max_size=40).map(
    lambda v: tensor(*v)
)


@settings(max_examples=60, deadline=None)
@example(tensor(*range(20)), tensor(*range(20)), lambda s: 2 * s)  # 19 of 20 are 95 % exactly
@given(values, values, st.sampled_from([lambda s: 1e-9 * s, lambda s: 1e9 * s**3 - 5]))
def test_detection_metrics_are_those_of_their_definitions_and_only_the_order_counts(
    inside, outside, monotone
):
    computed = ood.detection_metrics(inside, outside)
    assert computed == pytest.approx(brute_force(inside, outside), abs=1e-12)
    assert ood.detection_metrics(monotone(inside), monotone(outside)) == computed


def test_aurc_with_unknowns_is_the_mean_risk_over_coverages():
    inside, outside, correct = torch.rand(9), torch.rand(6), torch.rand(9) < 0.7
    answers = zip(inside.tolist(), (~correct).tolist(), strict=True)
    accepted = sorted([*answers, *((value, True) for value in outside.tolist())])
    risks = [sum(wrong for _, wrong in accepted[:k]) / k for k in range(1, 16)]
    assert ood.aurc_with_unknowns(inside, outside, correct=correct) == pytest.approx(
        sum(risks) / 15
    )


def test_evaluate_has_the_metrics_of_all_scores_that_both_predictions_have():
    inside, outside, valid = (from_logits(scale * torch.randn(200, 5)) for scale in (4, 1, 4))
    table = ood.evaluate(inside, outside, fitted_on=valid)
    assert list(table) == [*CERTAIN_ONES, "energy"]
    correct = inside.probs.argmax(1) == 0
    for name, row in table.items():
        pair = [ood.scores(prediction, fitted_on=valid)[name] for prediction in (inside, outside)]
        assert row == ood.detection_metrics(*pair) | {
            "aurc": ood.aurc_with_unknowns(*pair, correct=correct)
        }
    # Flat logits are strange to a network that is sure of what it knows.
    assert all(table[name]["auroc"] > 0.6 for name in table)
    bare = Prediction(probs=inside.probs)
    for pair in ((inside, bare), (bare, inside)):
        assert list(ood.evaluate(*pair, fitted_on=bare)) == CERTAIN_ONES


def test_mutual_information_is_judged_where_anything_was_drawn():
    """Two members that disagree on the one input or the other; without members there is none to
    judge."""
    first, second = (from_logits(3 * torch.randn(50, 4)) for _ in range(2))
    entropy = (first.expected_entropy + second.expected_entropy) / 2
    mixed = Prediction(probs=(first.probs + second.probs) / 2, expected_entropy=entropy)
    for inside, outside, expected in (
        (first, mixed, 1.0),
        (mixed, first, 0.0),
        (mixed, mixed, 0.5),
    ):
        assert (
            ood.evaluate(inside, outside, fitted_on=first)["mutual_information"]["auroc"]
            == expected
        )
    assert "mutual_information" not in ood.evaluate(first, second, fitted_on=first)
