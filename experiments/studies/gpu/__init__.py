"""Checks of a GPU: what works there, and how fast it is."""
