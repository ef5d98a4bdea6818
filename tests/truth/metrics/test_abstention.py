"""The threshold by hand, by brute force, and its promise on populations of known risk."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_cases import predictions
from scipy import stats

from probattn.inference import Prediction, RiskThreshold
from probattn.inference.decisions.abstention import risk_bound

RIGHT = [True, True, True, False, True, True]
CONFIDENCE = [0.95, 0.90, 0.85, 0.80, 0.70, 0.60]


def chosen(confidence, right, **options):
    probs, labels = predictions(confidence, right)
    return RiskThreshold(**options).fit_prediction(Prediction(probs=probs, labels=labels))


def test_one_sequence_by_hand():
    """Five answers, target 1/2, δ = 1/4: ½² ≤ ¼ lets two right ones start; two starts would need 3
    and 6 answers."""
    threshold = chosen(CONFIDENCE[:5], RIGHT[:5], target=0.5, delta=0.25)
    # ½² and ½³ pass, one wrong of four has P(Bin(4, ½) ≤ 1) = 5/16 > ¼.
    assert (threshold.confidence, threshold.coverage) == (0.85, 3 / 5)
    assert threshold.bound == pytest.approx(1 - 0.25 ** (1 / 3))
    probs, labels = predictions([0.9, 0.85, 0.84, 0.88, 0.99], [True, False, False, True, True])
    assert threshold.accepts(probs).tolist() == [True, True, False, True, True]
    low, high = stats.binomtest(1, 4).proportion_ci(0.75, method="exact")
    expected = {"accepted": 4, "coverage": 0.8, "risk": 0.25, "low": low, "high": high}
    assert threshold.evaluate(probs, labels) == pytest.approx(expected)


def test_a_second_start_gets_past_an_error_by_hand():
    """Six answers: sequences start at 3 and at 6, at level 1/8. The first ends at the error, the
    second does not."""
    threshold = chosen(CONFIDENCE, RIGHT, target=0.5, delta=0.25)
    assert stats.binom.cdf(1, 6, 0.5) == 7 / 64 <= 1 / 8 < stats.binom.cdf(1, 4, 0.5)
    assert (threshold.confidence, threshold.coverage) == (0.60, 1)
    assert stats.binom.cdf(1, 6, threshold.bound) == pytest.approx(1 / 8)


@pytest.mark.parametrize(("n", "is_enough"), [(58, False), (59, True)])
def test_five_percent_needs_59_answers_without_an_error(n, is_enough):
    threshold = chosen(np.linspace(0.6, 0.99, n), [True] * n, target=0.05)
    assert threshold.coverage == float(is_enough)
    assert ("59" in str(threshold)) != is_enough
    if not is_enough:
        assert (threshold.confidence, threshold.bound) == (math.inf, 1)
        result = threshold.evaluate(*predictions([1.0, 0.9], [True, False]))
        assert math.isnan(result.pop("risk"))
        assert result == {"accepted": 0, "coverage": 0, "low": 0, "high": 1}


@given(st.integers(0, 40), st.integers(0, 40), st.floats(0.001, 0.5))
@settings(deadline=None, max_examples=60)
def test_the_bound_is_scipys_one_sided_exact_interval(wrong, right, delta):
    for size in (1, 10**5):
        errors, accepted = size * wrong, size * (wrong + right)
        exact = 1.0
        if accepted:
            exact = (
                stats.binomtest(errors, accepted, alternative="less")
                .proportion_ci(1 - delta, "exact")
                .high
            )
        assert risk_bound(errors, accepted, delta=delta) == pytest.approx(exact)


def brute_force(confidence, right, target, delta):
    """The rule word by word: (confidence, coverage) or None."""
    n = len(right)

    def fewest(level):
        return next(m for m in range(1, 10_000) if (1 - target) ** m <= level)

    count = max([c for c in range(1, 12) if fewest(delta / c) * 2 ** (c - 1) <= n], default=1)
    best = None
    for start in (fewest(delta / count) * 2**step for step in range(count)):
        for value in sorted(set(confidence), reverse=True):
            accepted = [r for c, r in zip(confidence, right, strict=True) if c >= value]
            if len(accepted) < start:
                continue
            if (
                stats.binom.cdf(len(accepted) - sum(accepted), len(accepted), target)
                > delta / count
            ):
                break
            if best is None or len(accepted) / n > best[1]:
                best = value, len(accepted) / n
    return best


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(33, 64).map(lambda i: i / 64), st.integers(0, 9)),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([0.1, 0.2, 0.35, 0.5]),
    st.sampled_from([0.05, 0.2, 0.4]),
)
def test_the_threshold_is_that_of_brute_force_with_ties_accepted_together(items, target, delta):
    confidence, right = [c for c, _ in items], [digit > 0 for _, digit in items]
    threshold = chosen(confidence, right, target=target, delta=delta)
    expected = brute_force(confidence, right, target, delta)
    if expected is None:
        assert threshold.confidence == math.inf
    else:
        assert (threshold.confidence, threshold.coverage) == (
            expected[0],
            pytest.approx(expected[1]),
        )
        assert threshold.bound <= target + 1e-12


# The error rate at a confidence, uniform in [½, 1], and the risk of accepting from it on.
POPULATIONS = {
    "rising": (lambda c: 0.4 * (1 - c), lambda c: 0.2 * (1 - c)),
    "flat": (lambda c: np.full_like(c, 0.0501), lambda c: 0.0501),
    "step": (
        lambda c: np.where(c > 0.75, 0.02, 0.20),
        lambda c: 0.02 + 0.18 * max(0.75 - c, 0) / (1 - c),
    ),
}


@pytest.mark.parametrize(("population", "n"), [("rising", 400), ("flat", 2000), ("step", 400)])
def test_the_true_risk_exceeds_the_target_in_at_most_a_share_delta(population, n):
    rng = np.random.default_rng(1)
    error_rate, risk = POPULATIONS[population]
    broken, trials = 0, 400
    for _ in range(trials):
        confidence = rng.uniform(0.5, 1, size=n)
        right = rng.random(n) >= error_rate(confidence)
        threshold = chosen(confidence, right, target=0.05, delta=0.1).confidence
        broken += math.isfinite(threshold) and risk(threshold) > 0.05
    assert broken <= stats.binom.ppf(0.999, trials, 0.1)


@pytest.mark.parametrize(
    "option", [{"target": 0.0}, {"target": 1.0}, {"target": 0.1, "delta": 0.0}]
)
def test_target_and_delta_lie_between_0_and_1(option):
    with pytest.raises(ValueError, match="between 0 and 1"):
        RiskThreshold(**option)
