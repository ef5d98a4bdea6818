"""Decisions under uncertainty: thresholds for selective prediction, conformal sets and intervals.

May import ``metrics``, ``prediction`` and what is above them."""
