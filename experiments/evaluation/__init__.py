"""Evaluation of trained runs: test sets, methods, stored predictions, scores, decisions, statistics
over seeds.

May import ``runs``, ``config`` and ``data``.
"""
