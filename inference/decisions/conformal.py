"""Split-conformal prediction: sets of classes and intervals of numbers with guaranteed coverage.

A nonconformity score measures how badly a class fits an example. The quantile q̂ is the ⌈(n + 1)(1 − α)⌉-th smallest
score of the true classes of n calibration examples; a set holds the classes with scores of at most q̂. If calibration
and new examples are exchangeable, it holds the true class with probability ≥ 1 − α for any network (Vovk et al., 2005).
This marginal coverage averages over calibration data; conditionally on them, coverage follows Beta(l, n + 1 − l), l the
rank above, for continuous scores.

For numbers, the score measures the distance of a label from its prediction; the interval holds all numbers with scores
of at most q̂ (Lei et al., 2018). Each target has its own q̂: coverage is guaranteed per target, not jointly.
"""

from probattn.inference.decisions.conformal_intervals import CQR, Absolute, ConformalIntervals, Normalised
from probattn.inference.decisions.conformal_predictor import ConformalPredictor
from probattn.inference.decisions.conformal_sets import APS, LAC, ConformalSets

__all__ = ["APS", "CQR", "LAC", "Absolute", "ConformalIntervals", "ConformalPredictor", "ConformalSets", "Normalised"]
