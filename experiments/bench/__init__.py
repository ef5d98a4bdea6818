"""Benchmarks: time, peak memory and operations of layers and networks, as ratios within one run.

May import ``config``, ``data`` and ``runs``."""
