"""Posterior predictive distributions: how they are computed, aggregated over samples and queried.

May import ``io`` and ``distributed``."""
