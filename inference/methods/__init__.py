"""Baselines and post-hoc methods: MC dropout, ensembles, last-layer Laplace, SV-DKL, temperature
scaling.

May import ``prediction``, ``metrics``, ``distributed`` and ``io``.
"""
