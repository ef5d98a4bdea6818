"""Decisions under uncertainty: thresholds for selective prediction, conformal sets and intervals.

May import ``metrics``, ``methods``, ``export``, ``posterior``, ``prediction``, ``distributed`` and
``io``.
"""
