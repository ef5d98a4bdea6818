"""Decisions against brute force in exact arithmetic, from one calibration example to millions."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from fitted_methods import lac, risk_threshold
from scipy import stats

from probattn.inference.decisions.abstention import risk_bound

pytestmark = pytest.mark.filterwarnings("ignore::probattn.inference.FewExamplesWarning")

SIZES = [1, 2, 7, 1000, 100_000, pytest.param(10**6, marks=pytest.mark.slow)]
KINDS = ("random", "ties", "equal", "certain", "absent")


def cases(kind, n):
    """Probabilities ``(n, 3)``, and labels that follow them in nine of ten examples."""
    rng = np.random.default_rng(n)
    probs = rng.dirichlet(np.full(3, 0.3), n)
    if kind == "ties":
        probs = np.eye(3)[rng.integers(3, size=n)] * 0.5 + np.round(rng.uniform(0, 0.5, size=(n, 1)), 1) / 3
        probs /= probs.sum(1, keepdims=True)
    elif kind == "equal":
        probs[:] = (0.6, 0.3, 0.1)
    elif kind == "certain":
        probs = np.eye(3)[rng.integers(3, size=n)]
    labels = np.where(rng.random(n) < 0.97, probs.argmax(1), rng.integers(3, size=n))
    if kind == "absent":
        labels = np.minimum(labels, 1)
    return torch.tensor(probs), torch.tensor(labels)


@pytest.mark.parametrize("alpha", ["0.1", "0.29", "0.5"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", SIZES)
def test_conformal_quantiles_have_the_exact_rank(n, kind, alpha):
    probs, labels = cases(kind, n)
    scores = np.sort(1 - probs.numpy()[np.arange(n), labels.numpy()])
    rank = math.ceil((n + 1) * (1 - Fraction(alpha)))
    sets = lac(probs, labels, alpha=float(alpha))
    assert sets.quantile.item() == (scores[rank - 1] if rank <= n else math.inf)
    result = sets.evaluate(probs, labels)
    assert result["coverage"] == (1 - probs.numpy()[np.arange(n), labels.numpy()] <= sets.quantile.item()).mean()
    assert result["coverage"] >= 1 - float(alpha)
    assert result["size"] == pytest.approx((1 - probs.numpy() <= sets.quantile.item()).sum() / n, rel=1e-12)


def brute_force(confidence, right, target, delta):
    """The rule of the fixed sequences with SciPy's binomial distribution: confidence and coverage, or None."""
    n = len(right)
    values, first = np.unique(-confidence[np.argsort(-confidence)], return_index=True)
    accepted = np.append(first[1:], n)
    wrong = (~right[np.argsort(-confidence)]).cumsum()[accepted - 1]
    fewest = lambda level: math.ceil(math.log(level) / math.log1p(-target))  # noqa: E731
    count = max([c for c in range(1, 40) if fewest(delta / c) * 2 ** (c - 1) <= n], default=1)
    passes = stats.binom.cdf(wrong, accepted, target) <= delta / count
    best = -1
    for start in (fewest(delta / count) * 2**step for step in range(count)):
        for place in range(np.searchsorted(accepted, start), len(accepted)):
            if not passes[place]:
                break
            best = max(best, place)
    return None if best < 0 else (-values[best], accepted[best] / n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", SIZES)
def test_risk_thresholds_are_those_of_brute_force(n, kind):
    probs, labels = cases(kind, n)
    confidence, right = probs.amax(1).numpy(), (probs.argmax(1) == labels).numpy()
    threshold = risk_threshold(probs, labels, target=0.05)
    expected = brute_force(confidence, right, 0.05, 0.05)
    found = None if math.isinf(threshold.confidence) else (threshold.confidence, threshold.coverage)
    assert found == expected
    if found:
        result = threshold.evaluate(probs, labels)
        accepted = confidence >= threshold.confidence
        exact = stats.binomtest(int((~right & accepted).sum()), int(accepted.sum())).proportion_ci(0.95, "exact")
        assert (result["low"], result["high"]) == pytest.approx((exact.low, exact.high), rel=1e-8)
        assert result["risk"] == (~right & accepted).sum() / accepted.sum()


@pytest.mark.parametrize("n", [1, 10, 10**3, 10**5, 10**6, 10**7])
@pytest.mark.parametrize("share", [0.0, 1e-3, 0.05, 0.5, 1.0])
def test_exact_bounds_are_those_of_scipy_at_any_size(n, share):
    wrong = round(share * n)
    exact = stats.binomtest(wrong, n, alternative="less").proportion_ci(0.975, method="exact").high
    assert risk_bound(wrong, n, delta=0.025) == pytest.approx(exact, rel=1e-9)
