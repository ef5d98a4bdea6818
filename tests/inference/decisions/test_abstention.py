"""The threshold against arithmetic done by hand, brute force, and the promise itself on populations of known risk."""

import math

import numpy as np
import pytest
import torch
from fitted_methods import risk_threshold
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from probattn.inference import Prediction, RiskThreshold
from probattn.inference.decisions import abstention
from probattn.inference.decisions.abstention import risk_bound

pytestmark = pytest.mark.filterwarnings("ignore::probattn.inference.FewExamplesWarning")

RIGHT = [True, True, True, False, True, True]
CONFIDENCE = [0.95, 0.90, 0.85, 0.80, 0.70, 0.60]


def answers(confidence, right):
    """Probabilities of two classes whose top is class 0 with this confidence, and labels that make it right or not."""
    confidence = torch.as_tensor(np.asarray(confidence), dtype=torch.float64)
    return torch.stack([confidence, 1 - confidence], dim=1), 1 - torch.as_tensor(np.asarray(right), dtype=torch.long)


def fixed(**values):
    """A threshold with these values."""
    threshold = abstention.RiskThreshold(target=0.5)
    state = [1, *(({"error_free": 0} | values)[name] for name in threshold.fitted_values)]
    threshold.set_extra_state(torch.tensor(state, dtype=torch.float64))
    return threshold


def state(threshold):
    return threshold.get_extra_state().tolist()


# ---------------------------------------------------------------- by hand


def test_one_sequence_by_hand():
    """Five answers, target 1/2, δ = 1/4: ½² ≤ ¼ lets two right ones start; two starts would need 3 and 6 answers."""
    threshold = risk_threshold(*answers(CONFIDENCE[:5], RIGHT[:5]), target=0.5, delta=0.25)
    # ½² and ½³ pass, one wrong of four has P(Bin(4, ½) ≤ 1) = 5/16 > ¼.
    assert threshold.confidence == 0.85
    assert threshold.coverage == 3 / 5
    assert threshold.bound == pytest.approx(1 - 0.25 ** (1 / 3))
    assert (threshold.target, threshold.delta) == (0.5, 0.25)


def test_a_second_start_gets_past_an_error_by_hand():
    """Six answers: sequences start at 3 and at 6, at level 1/8. The first ends at the error, the second does not."""
    threshold = risk_threshold(*answers(CONFIDENCE, RIGHT), target=0.5, delta=0.25)
    assert stats.binom.cdf(1, 6, 0.5) == 7 / 64 <= 1 / 8 < stats.binom.cdf(1, 4, 0.5)
    assert threshold.confidence == 0.60
    assert threshold.coverage == 1
    assert stats.binom.cdf(1, 6, threshold.bound) == pytest.approx(1 / 8)
    assert 7 / 64 < 1 / 8 < stats.binom.cdf(1, 6, 0.47)


def test_equal_confidences_are_accepted_together():
    confidence = [0.95, 0.90, 0.90, 0.90, 0.70]
    threshold = risk_threshold(*answers(confidence, [True, True, True, False, True]), target=0.5, delta=0.25)
    assert threshold.confidence == math.inf  # two cannot be accepted without the third and fourth: 5/16 > ¼
    threshold = risk_threshold(*answers(confidence, [True] * 4 + [False]), target=0.4, delta=0.25)
    assert stats.binom.cdf(0, 4, 0.4) < 0.25 < stats.binom.cdf(1, 5, 0.4)
    assert (threshold.confidence, threshold.coverage) == (0.90, 0.8)


def test_nothing_reaches_the_target():
    threshold = risk_threshold(*answers(CONFIDENCE, [False] * 6), target=0.1)
    assert (threshold.confidence, threshold.coverage, threshold.bound) == (math.inf, 0, 1)
    assert str(threshold).startswith("abstain from everything: risk ≤ 10 % with 95 % confidence takes at least 29")
    probs, labels = answers([1.0, 0.9], [True, False])
    assert not threshold.accepts(probs).any()
    result = threshold.evaluate(probs, labels)
    assert math.isnan(result.pop("risk"))
    assert result == {"accepted": 0, "coverage": 0, "low": 0, "high": 1}


@pytest.mark.parametrize(("n", "found"), [(58, False), (59, True)])
def test_five_percent_needs_59_answers_without_an_error(n, found):
    threshold = risk_threshold(*answers(np.linspace(0.6, 0.99, n), [True] * n), target=0.05)
    assert math.isfinite(threshold.confidence) is found
    assert threshold.coverage == float(found)


def test_check_by_hand():
    threshold = fixed(confidence=0.8, bound=0.2, coverage=0.5, target=0.25, delta=0.1)
    probs, labels = answers([0.9, 0.8, 0.79, 0.85, 0.99], [True, False, False, True, True])
    assert threshold.accepts(probs).tolist() == [True, True, False, True, True]
    result = threshold.evaluate(probs, labels)
    interval = stats.binomtest(1, 4).proportion_ci(0.9, method="exact")
    assert (result["low"], result["high"]) == pytest.approx((interval.low, interval.high))
    assert (result["accepted"], result["coverage"], result["risk"]) == (4, 0.8, 0.25)
    assert str(threshold) == "accept if confidence ≥ 0.8: risk ≤ 25 % with 90 % confidence, coverage 50.0 %"


# ---------------------------------------------------------------- brute force and properties


@given(st.integers(0, 40), st.integers(0, 40), st.floats(0.001, 0.5))
def test_bound_is_scipys_one_sided_exact_interval(wrong, more, delta):
    accepted = wrong + more
    if accepted:
        exact = stats.binomtest(wrong, accepted, alternative="less").proportion_ci(1 - delta, method="exact").high
        assert risk_bound(wrong, accepted, delta=delta) == pytest.approx(exact)
    else:
        assert risk_bound(0, 0, delta=delta) == 1


def brute_force(confidence, right, target, delta):
    """The rule word by word: (confidence, coverage) or None."""
    n = len(right)
    fewest = lambda level: next(m for m in range(1, 10_000) if (1 - target) ** m <= level)  # noqa: E731
    count = max([c for c in range(1, 12) if fewest(delta / c) * 2 ** (c - 1) <= n], default=1)
    best = None
    for start in (fewest(delta / count) * 2**step for step in range(count)):
        for value in sorted(set(confidence), reverse=True):
            accepted = [r for c, r in zip(confidence, right, strict=True) if c >= value]
            if len(accepted) < start:
                continue
            wrong = len(accepted) - sum(accepted)
            if stats.binom.cdf(wrong, len(accepted), target) > delta / count:
                break
            best = (
                (value, len(accepted) / n)
                if best is None
                else max(best, (value, len(accepted) / n), key=lambda x: x[1])
            )
    return best


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(33, 64).map(lambda i: i / 64), st.integers(0, 9)), min_size=1, max_size=40),
    st.sampled_from([0.1, 0.2, 0.35, 0.5]),
    st.sampled_from([0.05, 0.2, 0.4]),
)
def test_threshold_against_brute_force(items, target, delta):
    confidence, right = [c for c, _ in items], [digit > 0 for _, digit in items]
    found = risk_threshold(*answers(confidence, right), target=target, delta=delta)
    expected = brute_force(confidence, right, target, delta)
    if expected is None:
        assert found.confidence == math.inf
    else:
        assert (found.confidence, found.coverage) == (expected[0], pytest.approx(expected[1]))
        assert found.bound <= target + 1e-12
        assert float(found.accepts(answers(confidence, right)[0]).double().mean()) == found.coverage


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_order_and_precision_of_the_examples_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.5, 1, size=300).astype(np.float32)
    probs, labels = answers(confidence, rng.random(300) < confidence**0.3)
    order = torch.from_numpy(rng.permutation(300))
    one = risk_threshold(probs, labels, target=0.1)
    assert state(one) == state(risk_threshold(probs[order], labels[order], target=0.1))
    assert state(one) == state(risk_threshold(probs.float()[order], labels[order].int(), target=0.1))


# ---------------------------------------------------------------- the promise


def rising(confidence):
    """Error rates that fall with confidence, to 0; confidence is uniform in [½, 1]."""
    return 0.4 * (1 - confidence)


def flat(confidence):
    """A confidence that says nothing, and an error rate a little above the target of 5 %."""
    return np.full_like(confidence, 0.0501)


def step(confidence):
    """2 % in the upper half of the answers, 20 % in the lower."""
    return np.where(confidence > 0.75, 0.02, 0.20)


POPULATIONS = {  # the error rate at a confidence, and the risk of accepting from it on
    "rising": (rising, lambda c: 0.2 * (1 - c)),
    "flat": (flat, lambda c: 0.0501),
    "step": (step, lambda c: 0.02 + 0.18 * max(0.75 - c, 0) / (1 - c)),
}


def share_broken(population, n, trials, seed):
    """Of how many validation sets the chosen threshold's true risk exceeds 5 %."""
    rng = np.random.default_rng(seed)
    error_rate, risk = POPULATIONS[population]
    broken = 0
    for _ in range(trials):
        confidence = rng.uniform(0.5, 1, size=n)
        right = rng.random(n) >= error_rate(confidence)
        chosen = risk_threshold(*answers(confidence, right), target=0.05, delta=0.1).confidence
        broken += math.isfinite(chosen) and risk(chosen) > 0.05
    return broken


TRIALS = 600
ALLOWED = stats.binom.ppf(0.999, TRIALS, 0.1)


@pytest.mark.parametrize(("population", "n"), [("rising", 400), ("flat", 2000), ("step", 400)])
def test_the_true_risk_exceeds_the_target_in_at_most_a_share_delta(population, n):
    assert share_broken(population, n, TRIALS, seed=1) <= ALLOWED


def test_the_promise_needs_the_bound_and_the_sharing_of_delta(monkeypatch):
    """The test above refuses the observed risk in place of its bound, and sequences at the full level each."""
    monkeypatch.setattr(abstention, "bdtr", lambda wrong, accepted, target: np.where(wrong <= target * accepted, 0, 1))
    assert share_broken("rising", 400, TRIALS, seed=1) > 2 * ALLOWED
    monkeypatch.undo()
    shares = []
    real = abstention._starts
    monkeypatch.setattr(abstention, "_starts", lambda *args: shares.append(real(*args)) or real(*args))
    monkeypatch.setattr(abstention, "bdtr", lambda *args: stats.binom.cdf(*args) / len(shares[-1]))
    assert share_broken("flat", 2000, TRIALS, seed=1) > ALLOWED


def test_most_of_what_is_allowed_is_found():
    """The threshold comes near coverage one half if the risk reaches 5 % there; a flat 2 % is accepted whole."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, size=20_000)
    right = rng.random(20_000) >= rising(confidence)
    assert 0.40 < risk_threshold(*answers(confidence, right), target=0.05).coverage < 0.5
    noisy = rng.random(20_000) >= 0.02
    assert risk_threshold(*answers(confidence, noisy), target=0.05).coverage == 1


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "option", [{"target": 0.0}, {"target": 1.0}, {"target": 0.1, "delta": 0.0}, {"target": math.nan}]
)
def test_target_and_delta_lie_between_0_and_1(option):
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        risk_threshold(*answers(CONFIDENCE, RIGHT), **option)


def test_what_is_no_prediction_is_refused():
    probs, labels = answers(CONFIDENCE, RIGHT)
    with pytest.raises(ValueError, match="sum to 1"):
        risk_threshold(2 * probs.clamp(max=0.5), labels, target=0.1)
    threshold = risk_threshold(probs, labels, target=0.5, delta=0.25)
    with pytest.raises(ValueError, match="means over samples"):
        threshold.accepts(probs[None])


def test_abstaining_from_everything_says_how_many_examples_without_an_error_it_takes():
    probs, labels = answers(np.linspace(0.9, 0.6, 100), np.arange(100) != 40)
    threshold = RiskThreshold(target=0.05).fit_prediction(Prediction(probs=probs, labels=labels))
    assert "59" in str(threshold)
    assert "40 most confident" in str(threshold)
    probs, labels = answers(np.linspace(0.9, 0.6, 59), np.ones(59, dtype=bool))
    assert "accept" in str(RiskThreshold(target=0.05).fit_prediction(Prediction(probs=probs, labels=labels)))
