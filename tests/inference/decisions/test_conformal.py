"""Conformal sets against arithmetic done by hand, brute force, and the exact law of their coverage."""

import math
import warnings

import numpy as np
import pytest
import torch
from fitted_methods import lac
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from probattn.inference import FewExamplesWarning, Prediction
from probattn.inference.decisions.conformal import LAC, ByClass

pytestmark = pytest.mark.filterwarnings("ignore::probattn.inference.FewExamplesWarning")


def random_answers(rng, n, classes=4, *, decimals=None):
    """Skilled, overconfident probabilities of a network, rounded to few values if asked, and labels."""
    labels = rng.integers(classes, size=n)
    logits = 2 * (rng.normal(size=(n, classes)) + 1.2 * np.eye(classes)[labels])
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    if decimals is not None:
        probs = np.round(probs, decimals) + 1e-3
        probs /= probs.sum(axis=1, keepdims=True)
    return torch.from_numpy(probs), torch.from_numpy(labels)


# ---------------------------------------------------------------- by hand

PROBS = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4], [0.1, 0.2, 0.7]], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 0, 2])  # scores 1 − p: 0.1, 0.7, 0.7, 0.3


@pytest.mark.parametrize(
    ("alpha", "rank"), [(0.1, 5), (0.19, 5), (0.2, 4), (0.4, 3), (0.5, 3), (0.6, 2), (0.79, 2), (0.8, 1), (0.95, 1)]
)
def test_quantile_of_four_scores_by_hand(alpha, rank):
    """⌈5 (1 − α)⌉-th smallest; the fifth of four is ∞."""
    quantile = lac(PROBS, LABELS, alpha=alpha).quantile.item()
    assert quantile == pytest.approx([0.1, 0.3, 0.7, 0.7, math.inf][rank - 1])


@pytest.mark.parametrize(
    ("n", "alpha", "rank"), [(99, 0.29, 71), (99, 0.7, 30), (9, 0.7, 3), (19, 0.05, 19), (18, 0.05, None)]
)
def test_the_rank_is_exact_where_floats_are_not(n, alpha, rank):
    score = np.linspace(0.01, 0.45, n)  # 100 · 0.29 = 28.999…, 100 · (1 − 0.7) = 30.000…4
    probs = torch.tensor(np.stack([1 - score, score], axis=1))
    quantile = lac(probs, torch.zeros(n, dtype=torch.long), alpha=alpha).quantile.item()
    assert quantile == (math.inf if rank is None else pytest.approx(score[rank - 1]))


def test_lac_sets_by_hand():
    probs = torch.tensor([[0.69, 0.31, 0.0], [0.3, 0.3, 0.4], [0.05, 0.95, 0.0], [0.35, 0.35, 0.3]])
    sets = lac(PROBS, LABELS, alpha=0.6)  # q̂ = 0.3: classes of at least 0.7
    assert sets.sets(probs).tolist() == [[False] * 3, [False] * 3, [False, True, False], [False] * 3]
    sets = lac(PROBS, LABELS, alpha=0.3)  # q̂ = 0.7: of at least 0.3
    assert sets.sets(probs.double()).tolist() == [[True, True, False], [True] * 3, [False, True, False], [True] * 3]
    assert lac(PROBS, LABELS, alpha=0.01).sets(probs).all()
    result = sets.evaluate(probs.double(), torch.tensor([1, 2, 0, 0]))
    assert result == {"coverage": 0.75, "size": 9 / 4, "empty": 0, "singletons": 0.25}
    assert lac(PROBS, LABELS, alpha=0.6).evaluate(probs, torch.tensor([1, 2, 1, 0])) == {
        "coverage": 0.25, "size": 0.25, "empty": 0.75, "singletons": 0.25
    }  # fmt: skip


# ---------------------------------------------------------------- the promise

TRIALS, SIZE, NEW = 300, 60, 100


def covered(alpha, *, decimals=None):
    """Of NEW examples, how many sets hold the true class, for each of TRIALS random calibration sets of SIZE."""
    rng = np.random.default_rng(7)
    counts = []
    for _ in range(TRIALS):
        probs, labels = random_answers(rng, SIZE + NEW, decimals=decimals)
        result = lac(probs[:SIZE], labels[:SIZE], alpha=alpha).evaluate(probs[SIZE:], labels[SIZE:])
        counts.append(round(NEW * result["coverage"]))
    return np.array(counts)


@pytest.mark.parametrize("alpha", [0.1, 0.33])
def test_coverage_follows_its_exact_law(alpha):
    """Given n scores without ties, coverage ~ Beta(l, n + 1 − l)."""
    rank = math.ceil(round((SIZE + 1) * (1 - alpha), 9))
    law = stats.betabinom(NEW, rank, SIZE + 1 - rank)
    counts = covered(alpha)
    assert abs(counts.mean() - law.mean()) < 4 * law.std() / math.sqrt(TRIALS)
    assert law.mean() == pytest.approx(NEW * rank / (SIZE + 1))
    edges = [-1, *law.ppf([0.2, 0.4, 0.6, 0.8]), NEW]
    expected = TRIALS * np.diff(law.cdf(edges))
    seen, _ = np.histogram(counts, bins=np.array(edges) + 0.5)
    assert stats.chisquare(seen, expected).pvalue > 1e-3


def test_ties_only_add_coverage_to_lac_sets():
    rank = math.ceil(61 * 0.67)
    exact = stats.betabinom(NEW, rank, 61 - rank)
    counts = covered(0.33, decimals=0)
    assert counts.mean() > exact.mean() + 4 * exact.std() / math.sqrt(TRIALS)


# ---------------------------------------------------------------- properties


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.floats(0.01, 0.98), st.floats(0.01, 0.98), st.booleans())
def test_sets_shrink_as_alpha_grows(seed, n, one, other, tied):
    rng = np.random.default_rng(seed)
    probs, labels = random_answers(rng, n, decimals=1 if tied else None)
    new, _ = random_answers(rng, 20, decimals=1 if tied else None)
    low, high = sorted((one, other))
    many, few = (lac(probs, labels, alpha=alpha).sets(new) for alpha in (low, high))
    assert (few <= many).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.6))
def test_at_least_its_share_of_the_calibration_scores_is_kept(seed, alpha):
    """Exchangeable: the calibration examples themselves are covered at least as often as a new one is promised."""
    probs, labels = random_answers(np.random.default_rng(seed), 50)
    assert lac(probs, labels, alpha=alpha).evaluate(probs, labels)["coverage"] >= 1 - alpha


def test_what_is_no_prediction_is_refused():
    with pytest.raises(ValueError, match=r"labels of shape \(4,\), got \(3,\)"):
        lac(PROBS, LABELS[:3], alpha=0.1)
    with pytest.raises(ValueError, match="softmax"):
        lac(PROBS, LABELS, alpha=0.1).sets(5 * PROBS - 1)


def test_few_calibration_examples_are_said_with_the_coverage_that_they_may_give():
    """Coverage given 30 examples is Beta(28, 3), whose 5 % quantile is 0.81."""
    probs = torch.distributions.Dirichlet(torch.ones(4, dtype=torch.float64)).sample((400,))
    labels = probs.multinomial(1)[:, 0]
    with pytest.warns(
        FewExamplesWarning, match=f"30 calibration examples promise 0.9 .*{stats.beta(28, 3).ppf(0.05):.2f}"
    ):
        LAC(alpha=0.1).fit_prediction(Prediction(probs=probs[:30], labels=labels[:30]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LAC(alpha=0.1).fit_prediction(Prediction(probs=probs, labels=labels))


def test_sets_by_class_cover_each_class_by_its_own_quantile():
    torch.manual_seed(0)
    labels = torch.arange(3).repeat_interleave(torch.tensor([400, 400, 5]))
    strength = torch.tensor([3.0, 0.75, 1.5])  # the classes differ in how easy they are
    probs = (torch.randn(805, 3, dtype=torch.float64) + torch.eye(3)[labels] * strength).softmax(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewExamplesWarning)
        sets = ByClass(alpha=0.2).fit_prediction(Prediction(probs=probs, labels=labels))
        few = ByClass(alpha=0.1).fit_prediction(Prediction(probs=probs, labels=labels))
    for label, rank in ((0, 321), (1, 321), (2, 5)):  # ⌈(n + 1) 0.8⌉-th smallest score of the class, by hand
        scores = sorted((1 - probs[labels == label, label]).tolist())
        assert sets.quantile[label].item() == scores[rank - 1]
    members = sets.sets(probs)
    assert torch.equal(members, 1 - probs <= sets.quantile)
    for label in (0, 1):
        assert 0.8 <= members[labels == label, label].double().mean() < 0.81
    assert few.quantile[2] == math.inf
    assert few.sets(probs)[:, 2].all()
