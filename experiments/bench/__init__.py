"""Benchmarks: time, peak memory and FLOP/s, as ratios within one run.

May import ``config``, ``data`` and ``runs``."""
