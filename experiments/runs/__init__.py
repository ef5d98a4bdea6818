"""Runs: building, training, opening and exporting them.

May import ``config`` and ``data``."""
