"""Which classes to keep: split-conformal prediction sets that hold the true class with a chosen probability.

A score says how badly a class fits an example. The q̂ of the scores of n calibration examples, of which the class is
known, is their ⌈(n + 1)(1 − α)⌉-th smallest; a set keeps the classes whose score is at most q̂. Calibration and new
examples exchangeable, the true class is in it with probability ≥ 1 − α (Vovk et al., 2005), whatever the network. That
is over both: given the calibration data the coverage follows Beta(l, n + 1 − l), l that rank, for continuous scores.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from probattn.inference.metrics import checked

Score = Callable[[Tensor, Generator | None], Tensor]
"""Probabilities ``(n, classes)``, float64 on the CPU, and a source of randomness → scores ``(n, classes)``."""


@dataclass(frozen=True)
class ConformalSets:
    """Prediction sets: the classes whose `score` is at most `quantile`.

    Args:
        score: how badly a class fits.
        quantile: q̂; ∞, so that every set holds all classes, where n < 1/α − 1 examples cannot say more.
        alpha: the probability that is allowed to miss the true class.
    """

    score: Score
    quantile: float
    alpha: float

    def sets(self, probs: Tensor, *, generator: Generator | None = None) -> Tensor:
        """Whether each class is in the set of each example, bool ``(n, classes)``.

        Args:
            probs: mean probabilities ``(n, classes)``.
            generator: where adaptive sets draw their randomness, on the CPU; None takes PyTorch's own.
        """
        known, _ = checked(probs, torch.zeros(len(probs), dtype=torch.long))
        return (self.score(known, generator) <= self.quantile).to(probs.device)

    def evaluate(self, probs: Tensor, labels: Tensor, *, generator: Generator | None = None) -> dict[str, float]:
        """What the sets do on test data: means over examples.

        Returns:
            ``coverage``, the share of sets with the true class; ``size``, the mean number of classes in a set;
            ``empty`` and ``singletons``, the shares of sets with none and with one.
        """
        probs, labels = checked(probs, labels)
        sets = self.sets(probs, generator=generator)
        size = sets.sum(dim=1)
        return {
            "coverage": float(sets.gather(1, labels[:, None]).double().mean()),
            "size": float(size.double().mean()),
            "empty": float((size == 0).double().mean()),
            "singletons": float((size == 1).double().mean()),
        }


def plain(probs: Tensor, labels: Tensor, *, alpha: float) -> ConformalSets:
    """Sets of the least mean size (Sadinle, Lei & Wasserman, 2019): every class of probability at least 1 − q̂.

    The score is 1 − p. Examples that the network finds hard may get an empty set.

    Args:
        probs: mean probabilities of calibration examples ``(n, classes)`` that nothing was fitted to.
        labels: their class indices ``(n,)``.
        alpha: the probability, 0 < alpha < 1, that is allowed to miss the true class.

    Raises:
        ValueError: alpha outside (0, 1), or as in `inference.metrics`.
    """
    return _calibrated(_unlikeliness, probs, labels, alpha, None)


def adaptive(probs: Tensor, labels: Tensor, *, alpha: float, generator: Generator | None = None) -> ConformalSets:
    """Sets that grow with the difficulty of the example (APS; Romano, Sesia & Candès, 2020).

    The score is the probability of all likelier classes, plus u times that of the class itself; u ~ U(0, 1) is drawn
    for each example, in calibration and in use, and makes the coverage exact where probabilities are tied or few.

    Args:
        probs, labels, alpha: as in `plain`.
        generator: where u is drawn from, on the CPU; None takes PyTorch's own.

    Raises:
        ValueError: as in `plain`.
    """
    return _calibrated(_mass_above, probs, labels, alpha, generator)


def _unlikeliness(probs: Tensor, generator: Generator | None) -> Tensor:
    return 1 - probs


def _mass_above(probs: Tensor, generator: Generator | None) -> Tensor:
    ordered, order = probs.sort(dim=1, descending=True, stable=True)
    u = torch.rand(len(probs), 1, dtype=probs.dtype, generator=generator)
    scores = ordered.cumsum(dim=1) - (1 - u) * ordered
    return torch.empty_like(scores).scatter_(1, order, scores)


def _calibrated(
    score: Score, probs: Tensor, labels: Tensor, alpha: float, generator: Generator | None
) -> ConformalSets:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}: 0.1 for sets that hold the true class in 90 %")
    probs, labels = checked(probs, labels)
    scores = score(probs, generator).gather(1, labels[:, None])[:, 0].sort().values
    missed = math.floor((len(scores) + 1) * alpha + 1e-9)  # 100 · 0.29 is 28.999…
    return ConformalSets(score, float(scores[-missed]) if missed else math.inf, alpha)
