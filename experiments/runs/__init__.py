"""A run: training it into its folder, opening it, exporting it.

May import ``config`` and ``data``."""
