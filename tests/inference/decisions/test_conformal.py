"""Conformal sets against arithmetic done by hand, brute force, and the exact law of their coverage."""

import math
import warnings

import numpy as np
import pytest
import torch
from fitted_methods import aps, lac
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from probattn.inference import FewExamplesWarning, Prediction
from probattn.inference.decisions.conformal import APS, LAC

pytestmark = pytest.mark.filterwarnings("ignore::probattn.inference.FewExamplesWarning")


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def uniform(seed, n):
    """Random numbers that APS draws from such a generator."""
    return torch.rand(n, dtype=torch.float64, generator=seeded(seed))


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
    quantile = lac(PROBS, LABELS, alpha=alpha).quantile
    assert quantile == pytest.approx([0.1, 0.3, 0.7, 0.7, math.inf][rank - 1])


@pytest.mark.parametrize(
    ("n", "alpha", "rank"), [(99, 0.29, 71), (99, 0.7, 30), (9, 0.7, 3), (19, 0.05, 19), (18, 0.05, None)]
)
def test_the_rank_is_exact_where_floats_are_not(n, alpha, rank):
    score = np.linspace(0.01, 0.45, n)  # 100 · 0.29 = 28.999…, 100 · (1 − 0.7) = 30.000…4
    probs = torch.tensor(np.stack([1 - score, score], axis=1))
    quantile = lac(probs, torch.zeros(n, dtype=torch.long), alpha=alpha).quantile
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


def test_aps_scores_and_sets_by_hand():
    """Score: the probability of all likelier classes, and u times the class's own."""
    u = uniform(3, 4).numpy()
    scores = sorted([u[0] * 0.9, 0.5 + u[1] * 0.3, 0.4 + u[2] * 0.3, u[3] * 0.7])
    sets = aps(PROBS, LABELS, alpha=0.4, generator=seeded(3))
    assert sets.quantile == pytest.approx(scores[2])
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.98, 0.01, 0.01]], dtype=torch.float64)
    v = uniform(4, 2).numpy()
    by_class = [[0.8 + 0.2 * v[0], 0.5 * v[0], 0.5 + 0.3 * v[0]], [0.98 * v[1], 0.98 + 0.01 * v[1], 0.99 + 0.01 * v[1]]]
    expected = (np.array(by_class) <= scores[2]).tolist()
    assert sets.sets(probs, generator=seeded(4)).tolist() == expected
    result = sets.evaluate(probs, torch.tensor([1, 0]), generator=seeded(4))
    assert result["size"] == np.sum(expected) / 2
    assert result["coverage"] == (expected[0][1] + expected[1][0]) / 2


def test_the_same_generator_gives_the_same_sets():
    probs, labels = random_answers(np.random.default_rng(0), 200)
    first = aps(probs, labels, alpha=0.2, generator=seeded(1))
    assert first.quantile == aps(probs, labels, alpha=0.2, generator=seeded(1)).quantile
    assert first.quantile != aps(probs, labels, alpha=0.2, generator=seeded(2)).quantile
    same = [first.sets(probs, generator=seeded(5)) for _ in range(2)]
    assert torch.equal(*same)
    assert not torch.equal(same[0], first.sets(probs, generator=seeded(6)))
    torch.manual_seed(5)
    assert torch.equal(first.sets(probs), same[0])  # None is PyTorch's own


# ---------------------------------------------------------------- the promise

TRIALS, SIZE, NEW = 300, 60, 100


def covered(make, alpha, *, decimals=None):
    """Of NEW examples, how many sets hold the true class, for each of TRIALS random calibration sets of SIZE."""
    rng = np.random.default_rng(7)
    counts = []
    for trial in range(TRIALS):
        probs, labels = random_answers(rng, SIZE + NEW, decimals=decimals)
        sets = make(probs[:SIZE], labels[:SIZE], alpha=alpha, generator=seeded(trial))
        result = sets.evaluate(probs[SIZE:], labels[SIZE:], generator=seeded(10_000 + trial))
        counts.append(round(NEW * result["coverage"]))
    return np.array(counts)


def lac_sets(probs, labels, *, alpha, generator):
    return lac(probs, labels, alpha=alpha)


@pytest.mark.parametrize(("make", "decimals"), [(lac_sets, None), (aps, None), (aps, 1)])
@pytest.mark.parametrize("alpha", [0.1, 0.33])
def test_coverage_follows_its_exact_law(make, decimals, alpha):
    """Given n scores without ties, coverage ~ Beta(l, n + 1 − l); the randomised score has none, whatever the ties."""
    rank = math.ceil(round((SIZE + 1) * (1 - alpha), 9))
    law = stats.betabinom(NEW, rank, SIZE + 1 - rank)
    counts = covered(make, alpha, decimals=decimals)
    assert abs(counts.mean() - law.mean()) < 4 * law.std() / math.sqrt(TRIALS)
    assert law.mean() == pytest.approx(NEW * rank / (SIZE + 1))
    edges = [-1, *law.ppf([0.2, 0.4, 0.6, 0.8]), NEW]
    expected = TRIALS * np.diff(law.cdf(edges))
    seen, _ = np.histogram(counts, bins=np.array(edges) + 0.5)
    assert stats.chisquare(seen, expected).pvalue > 1e-3


def test_ties_only_add_coverage_to_lac_sets():
    rank = math.ceil(61 * 0.67)
    exact = stats.betabinom(NEW, rank, 61 - rank)
    counts = covered(lac_sets, 0.33, decimals=0)
    assert counts.mean() > exact.mean() + 4 * exact.std() / math.sqrt(TRIALS)


def test_aps_sets_are_larger_where_it_is_hard():
    """Half of the examples easy, half without a clue: LAC covers the easy half more, APS both alike."""
    rng = np.random.default_rng(1)
    n = 4000
    easy = torch.from_numpy(np.arange(n) % 2 == 0)
    truth = np.where(easy[:, None], [0.9, 0.05, 0.03, 0.02], [0.25 + 0.03, 0.25 + 0.01, 0.25 - 0.01, 0.25 - 0.03])
    labels = torch.from_numpy(np.array([rng.choice(4, p=row) for row in truth]))
    probs = torch.from_numpy(truth)
    half = n // 2
    spread = {}
    for name, sets in {
        "lac": lac(probs[:half], labels[:half], alpha=0.2),
        "aps": aps(probs[:half], labels[:half], alpha=0.2, generator=seeded(0)),
    }.items():
        kept = sets.sets(probs[half:], generator=seeded(1))
        hit = kept.gather(1, labels[half:, None])[:, 0].double()
        spread[name] = abs(float(hit[easy[half:]].mean() - hit[~easy[half:]].mean()))
        assert kept[easy[half:]].sum() < kept[~easy[half:]].sum()
    assert spread["aps"] < 0.06 < spread["lac"]


# ---------------------------------------------------------------- properties


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.floats(0.01, 0.98), st.floats(0.01, 0.98), st.booleans())
def test_sets_shrink_as_alpha_grows(seed, n, one, other, tied):
    rng = np.random.default_rng(seed)
    probs, labels = random_answers(rng, n, decimals=1 if tied else None)
    new, _ = random_answers(rng, 20, decimals=1 if tied else None)
    low, high = sorted((one, other))
    for make in (lac_sets, aps):
        many, few = (
            make(probs, labels, alpha=a, generator=seeded(1)).sets(new, generator=seeded(2)) for a in (low, high)
        )
        assert (few <= many).all()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.floats(0.02, 0.95), st.booleans())
def test_aps_scores_against_brute_force(seed, n, alpha, tied):
    rng = np.random.default_rng(seed)
    probs, labels = random_answers(rng, n, decimals=1 if tied else None)
    u = uniform(1, n).numpy()

    def score(row, label, draw):
        order = sorted(range(len(row)), key=lambda c: (-row[c], c))
        return sum(row[c] for c in order[: order.index(label)]) + draw * row[label]

    scores = sorted(score(row, int(y), draw) for row, y, draw in zip(probs.tolist(), labels, u, strict=True))
    rank = next(l for l in range(n + 2) if l >= round((n + 1) * (1 - alpha), 9))
    quantile = aps(probs, labels, alpha=alpha, generator=seeded(1)).quantile
    assert quantile == pytest.approx(scores[rank - 1] if rank <= n else math.inf)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.6))
def test_at_least_its_share_of_the_calibration_scores_is_kept(seed, alpha):
    """Exchangeable: the calibration examples themselves are covered at least as often as a new one is promised."""
    probs, labels = random_answers(np.random.default_rng(seed), 50)
    assert lac(probs, labels, alpha=alpha).evaluate(probs, labels)["coverage"] >= 1 - alpha


@pytest.mark.parametrize("make", [lac, aps])
@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, math.nan])
def test_alpha_lies_between_0_and_1(make, alpha):
    with pytest.raises(ValueError, match="alpha must lie between 0 and 1"):
        make(PROBS, LABELS, alpha=alpha)


@pytest.mark.parametrize("make", [lac, aps])
def test_what_is_no_prediction_is_refused(make):
    with pytest.raises(ValueError, match=r"labels of shape \(4,\), got \(3,\)"):
        make(PROBS, LABELS[:3], alpha=0.1)
    with pytest.raises(ValueError, match="softmax"):
        make(PROBS, LABELS, alpha=0.1).sets(5 * PROBS - 1)


@pytest.mark.parametrize("make", [lac, aps])
@pytest.mark.parametrize("classes", [2, 4])
def test_sets_are_refused_for_another_number_of_classes(make, classes):
    sets = make(PROBS, LABELS, alpha=0.5)
    message = f"calibrated on 3 classes, and the prediction has {classes}"
    for use in (sets.sets, lambda probs: sets.evaluate(probs, torch.zeros(2).long())):
        with pytest.raises(ValueError, match=message):
            use(torch.full((2, classes), 1 / classes))


@pytest.mark.parametrize("kind", [LAC, APS])
def test_few_calibration_examples_are_said_with_the_coverage_that_they_may_give(kind):
    """Coverage given 30 examples is Beta(28, 3), whose 5 % quantile is 0.81."""
    probs = torch.distributions.Dirichlet(torch.ones(4, dtype=torch.float64)).sample((400,))
    labels = probs.multinomial(1)[:, 0]
    with pytest.warns(
        FewExamplesWarning, match=f"30 calibration examples promise 0.9 .*{stats.beta(28, 3).ppf(0.05):.2f}"
    ):
        kind(alpha=0.1).fit_prediction(Prediction(probs=probs[:30], labels=labels[:30]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind(alpha=0.1).fit_prediction(Prediction(probs=probs, labels=labels))
