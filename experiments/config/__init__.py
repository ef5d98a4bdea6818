"""Settings of a run, and the presets of the papers.

May import ``data``."""
