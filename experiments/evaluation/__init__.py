"""Evaluation of runs: test sets, methods, stored predictions, scores, statistics over seeds.

May import ``runs``, ``config`` and ``data``."""
