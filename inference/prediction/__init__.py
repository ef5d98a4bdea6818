"""Posterior predictive distributions: computing them, aggregating over samples, querying the
result.

May import ``io`` and ``distributed``.
"""
