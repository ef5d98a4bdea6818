"""Baselines and post-hoc methods: MC dropout, ensembles, KFLLLA, SV-DKL, temperature scaling.

May import ``prediction`` and what is above it."""
