"""What decisions cannot do with few examples, and with other class shares, is said; counts by
hand."""

import math

import pytest
import torch
from scipy import stats

from probattn.experiments.evaluation.calibration import Calibration
from probattn.experiments.evaluation.decision_notes import (
    EMPTY_SET,
    OUTSIDE_INTERVAL,
    OUTSIDE_SET,
    few_examples,
    other_shares,
    outside_sets,
)
from probattn.inference import Prediction, conformal

ORIGIN = {"weights": "digest", "num_samples": 10, "seed": 0}
CLASSES = ("ship", "frog", "cat", "owl")


def answers(counts, confidence=0.9):
    """Right answers of one confidence, so many of each class."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    right = torch.nn.functional.one_hot(labels, len(counts)).double()
    probs = right * confidence + (1 - right) * (1 - confidence) / (len(counts) - 1)
    return Prediction(probs=probs, labels=labels)


def calibrated(counts, **options):
    return Calibration.fit(answers(counts), **ORIGIN, **options)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.2, 1 / 3, 0.29, 0.5, 0.9])
def test_the_examples_that_a_quantile_needs_are_the_fewest_with_a_finite_one(alpha):
    is_finite = [
        math.isfinite(conformal.conformal_quantile(torch.rand(n, 1), alpha)) for n in range(1, 120)
    ]
    assert conformal.min_examples(alpha) == 1 + is_finite.index(True)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
def test_the_classes_that_are_in_every_set_are_the_named_ones(level):
    calibration = calibrated((60, 20, 4, 0), level=level)
    everywhere = calibration.sets(torch.eye(4, dtype=torch.float64), kind="by-class").all(0)
    text = " ".join(few_examples(calibration, CLASSES))
    assert [name in text for name in CLASSES] == everywhere.tolist()
    if level == 0.9:
        assert "cat (4)" in text
        assert "owl (0)" in text
        assert "at least 9" in text


def test_plain_sets_and_intervals_without_a_quantile_hold_everything_and_say_so():
    _, text = few_examples(calibrated((3, 2, 2, 1)), CLASSES)
    assert "every class" in text
    numbers = Calibration(**ORIGIN)
    (text,) = few_examples(numbers, ())
    assert "at least 9" in text
    assert few_examples(Calibration(**ORIGIN, quantile=1.0), ()) == []
    assert few_examples(calibrated((60, 20, 9, 9)), CLASSES) == []


@pytest.mark.parametrize(
    ("valid", "test", "differ"),
    [
        ((50, 50), (50, 50), False),
        ((80, 20), (50, 50), True),
        ((5000, 5000), (4500, 5500), True),
        ((50, 0), (25, 25), True),
    ],
)
def test_class_shares_that_differ_by_more_than_chance_are_named(valid, test, differ):
    """The 1 % point of χ² with one degree of freedom is 6.63, by the formula with two rows."""
    total, tested = sum(valid), sum(test)
    pooled = (valid[0] + test[0]) / (total + tested)
    variance = pooled * (1 - pooled) * (1 / total + 1 / tested)
    statistic = (valid[0] / total - test[0] / tested) ** 2 / variance
    assert (statistic > stats.chi2.ppf(0.99, 1)) == differ
    text = " ".join(other_shares(calibrated(valid), ("ship", "frog"), answers(test)))
    assert bool(text) == differ
    if differ:
        pairs = zip(valid, test, strict=True)  # both classes differ equally
        said = [f"{100 * a / total:.1f} % and {100 * b / tested:.1f} %" in text for a, b in pairs]
        assert any(said)


def test_one_example_of_a_rare_class_in_the_smaller_part_is_chance():
    """It lies there with probability 101 / 5101, 2 %, for which χ² would have 2e-12."""
    valid, test = (100, 1), (5000, 0)
    assert stats.fisher_exact([valid, test]).pvalue > 0.01
    assert stats.chi2_contingency([valid, test], correction=False).pvalue < 1e-9
    assert other_shares(calibrated(valid), ("ship", "frog"), answers(test)) == []


def test_many_rare_classes_are_no_difference_by_themselves():
    """Two hundred classes of one example, each in one of the parts alone."""
    halves = (1, 0) * 100
    names = tuple(f"class {number}" for number in range(200))
    other = tuple(1 - count for count in halves)
    assert other_shares(calibrated(halves), names, answers(other)) == []


def test_abstention_that_accepts_nothing_says_what_it_takes_also_from_the_file(tmp_path):
    calibration = calibrated((30, 20, 5, 0))
    calibration.save(tmp_path)
    read = Calibration.load(tmp_path, weights="digest", classes=4)
    abstention, sets = few_examples(read, CLASSES)
    assert "at least 59" in abstention
    assert "55 most confident" in abstention
    assert "owl (0), cat (5)" in sets
    assert "at least 59" not in " ".join(few_examples(calibrated((60, 0, 0, 0)), CLASSES))


def test_answers_outside_of_their_own_sets_are_counted_with_a_reason():
    generator = torch.Generator().manual_seed(int(torch.randint(1000, ())))
    probs = (2 * torch.randn(200, 3, generator=generator, dtype=torch.float64)).softmax(-1)
    quantiles = (0.3, 0.6, 0.8)
    calibration = Calibration(
        **ORIGIN, temperature=1.0, quantile=0.4, class_quantiles=quantiles, confidence=0.9
    )
    counts = {"plain": 0, "by class": 0, "outside": 0}
    for row in probs.tolist():
        best = row.index(max(row))
        members = [place for place in range(3) if 1 - row[place] <= quantiles[place]]
        counts["plain"] += max(row) < 1 - 0.4
        counts["by class"] += not members
        counts["outside"] += bool(members) and best not in members
    assert min(counts.values()) > 0
    empty, outside = outside_sets(calibration, Prediction(probs=probs))
    assert empty.lower().startswith(EMPTY_SET)
    assert outside.lower().startswith(OUTSIDE_SET)
    assert f"{counts['plain']} (plain set) and {counts['by class']} (set by class)" in empty
    assert f"{counts['outside']} (set by class) of 200" in outside
    for sentence in (empty, outside):
        assert "90 %" in sentence
        assert "to a person" in sentence


def test_sets_that_hold_their_answers_need_no_word():
    probs = torch.eye(3, dtype=torch.float64)
    whole = {"temperature": 1.0, "class_quantiles": (0.5,) * 3, "confidence": 0.9}
    for quantile in (0.5, math.inf):
        calibration = Calibration(**ORIGIN, quantile=quantile, **whole)
        assert outside_sets(calibration, Prediction(probs=probs)) == []


def test_numbers_outside_of_their_own_intervals_are_counted():
    """The interval of N(0, 1) at 90 % reaches to 1.645; a quantile of -2 leaves nothing of it."""
    law = torch.distributions.Normal(torch.zeros(1, 8, 1), torch.ones(1, 8, 1))
    law = torch.distributions.Independent(law, 1)
    zeros = torch.zeros(8, 1)
    test = Prediction(mean=zeros, variance=zeros + 1, labels=zeros, components=(law,))
    assert outside_sets(Calibration(**ORIGIN, quantile=-1.0), test) == []
    (sentence,) = outside_sets(Calibration(**ORIGIN, quantile=-2.0), test)
    assert sentence.lower().startswith(OUTSIDE_INTERVAL)
    assert "8 (conformal interval) of 8" in sentence
