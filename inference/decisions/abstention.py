"""When to abstain: a threshold of confidence that keeps the risk of the answers under a target.

The risk is the error rate among the accepted, the confidence the largest probability (as in `inference.metrics`). The
task is that of Geifman & El-Yaniv, "Selective classification for deep neural networks" (2017). Their search bisects at
δ/⌈log₂ n⌉ each, but where it looks next depends on what it saw, which a union bound over its steps leaves out. Here the
thresholds are tested in an order that does not depend on any label: from the safest on, one accepted example more each
time, each at the same level, until one fails. Such a fixed sequence needs no correction for its length. Its weakness,
that one early error ends it, is cured by starting it at several places, which share δ equally (Bauer, 1991;
Angelopoulos et al., "Learn then test", 2021).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import bdtr, betaincinv
from torch import Tensor

from probattn.inference.metrics import checked


@dataclass(frozen=True)
class Threshold:
    """Answers are accepted whose confidence is at least `confidence`.

    Args:
        confidence: the threshold; ∞ where none keeps the target, so that nothing is accepted.
        bound: what its own test bounds its risk by, at most `target`; 1 where nothing is accepted. The promise is that
            the risk is under `target`: it was chosen among many, and a bound far below counts for one chosen alone.
        coverage: share of the validation examples accepted.
        target, delta: what was asked for.
    """

    confidence: float
    bound: float
    coverage: float
    target: float
    delta: float

    def accepts(self, probs: Tensor) -> Tensor:
        """Whether each answer is accepted, bool ``(n,)``, from mean probabilities ``(n, classes)``."""
        labels = torch.zeros(len(probs), dtype=torch.long)
        return checked(probs, labels)[0].amax(dim=1).to(probs.device) >= self.confidence

    def check(self, probs: Tensor, labels: Tensor) -> dict[str, float]:
        """What the threshold does on test data, which took no part in choosing it.

        Returns:
            ``accepted`` (a count), ``coverage``, ``risk`` (NaN where nothing is accepted), its exact two-sided interval
            ``low``, ``high`` at confidence 1 − delta (Clopper & Pearson, 1934), and whether the target ``holds``: the
            risk seen is at most the target, or nothing is accepted.
        """
        probs, labels = checked(probs, labels)
        accepted = self.accepts(probs)
        count = int(accepted.sum())
        wrong = int((probs.argmax(dim=1) != labels)[accepted].sum())
        risk = wrong / count if count else math.nan
        return {
            "accepted": count,
            "coverage": count / len(labels),
            "risk": risk,
            "low": 1 - risk_bound(count - wrong, count, delta=self.delta / 2),
            "high": risk_bound(wrong, count, delta=self.delta / 2),
            "holds": not count or risk <= self.target,
        }

    def __str__(self) -> str:
        promise = f"risk ≤ {100 * self.target:g} % with {100 * (1 - self.delta):g} % confidence"
        if math.isinf(self.confidence):
            return f"abstain from everything: no threshold gives {promise} on these validation data"
        return f"answer where confidence ≥ {self.confidence:.4g}: {promise}, {100 * self.coverage:.1f} % are answered"


def risk_threshold(probs: Tensor, labels: Tensor, *, target: float, delta: float = 0.05) -> Threshold:
    """Choose the threshold of largest coverage whose risk is at most `target` with probability 1 − `delta`.

    The probability is over validation data, drawn independently from where new data come from, and exact for every n if
    the risk does not fall when less confident answers are accepted too. The data must have taken no part in training,
    and in nothing else that was fitted, such as a temperature. Equal confidences are accepted together.

    Args:
        probs: mean probabilities of validation examples ``(n, classes)``.
        labels: their class indices ``(n,)``.
        target: the largest risk wanted, 0 < target < 1. At least log(delta) / log(1 − target) examples without an error
            are needed for it, 59 for 5 %, 299 for 1 %.
        delta: chance, 0 < delta < 1, that the threshold's risk is larger.

    Raises:
        ValueError: target or delta outside (0, 1), or as in `inference.metrics`.
    """
    for name, value in (("target", target), ("delta", delta)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie between 0 and 1, got {value}")
    probs, labels = checked(probs, labels)
    confidence, order = probs.amax(dim=1).sort(descending=True)
    wrong = (probs.argmax(dim=1) != labels)[order].cumsum(0)
    last = torch.cat([confidence[1:] < confidence[:-1], torch.ones(1, dtype=torch.bool)])  # of equal confidences
    confidence, wrong, accepted = (x.numpy() for x in (confidence[last], wrong[last], last.nonzero()[:, 0] + 1))
    starts = _starts(len(labels), target, delta)
    level = delta / len(starts)
    fails = np.append(np.flatnonzero(bdtr(wrong, accepted, target) > level), len(accepted))
    firsts = np.searchsorted(accepted, starts)
    ends = fails[np.searchsorted(fails, firsts)]  # of each sequence, the first threshold that fails
    passed = ends[ends > firsts]
    if not len(passed):
        return Threshold(math.inf, 1.0, 0.0, target, delta)
    best = passed.max() - 1
    bound = risk_bound(int(wrong[best]), int(accepted[best]), delta=level)
    return Threshold(float(confidence[best]), bound, float(accepted[best] / len(labels)), target, delta)


def risk_bound(wrong: int, accepted: int, *, delta: float) -> float:
    """Upper bound of a risk with `wrong` of `accepted` answers seen: too low with probability ≤ `delta`.

    Exact inversion of the binomial tail, P(Bin(accepted, bound) ≤ wrong) = delta (Clopper & Pearson, 1934); 1 where all
    are wrong, or none is there.
    """
    return 1.0 if wrong == accepted else float(betaincinv(wrong + 1, accepted - wrong, 1 - delta))


def _starts(n: int, target: float, delta: float) -> list[int]:
    """Numbers of accepted examples from which sequences start: doubling from the fewest that can pass."""
    count = 1
    while _fewest(target, delta / (count + 1)) * 2**count <= n:
        count += 1
    return [_fewest(target, delta / count) * 2**step for step in range(count)]


def _fewest(target: float, level: float) -> int:
    """Smallest number of accepted examples that pass at this level if none is wrong."""
    return math.ceil(math.log(level) / math.log1p(-target))
