"""Trained classifiers for use and for others: one object that predicts, a folder to share, a model
card.

May import ``evaluation``, ``bench`` and what these import.
"""
