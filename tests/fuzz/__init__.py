"""Fuzzers: random attacks on commands and layers; the suite runs them for seconds.

``python -m tests.fuzz --minutes 10`` in the root of a clone; ``--help`` lists the options.
"""
