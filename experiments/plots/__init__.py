"""Matplotlib figures: pure functions from results to a figure, without global state; None if there
is nothing to draw.

May import ``evaluation`` and what is above it.
"""
