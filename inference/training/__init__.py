"""Stochastic variational inference: ``fit``, its options, training steps, schedules and logs.

May import ``metrics``, ``prediction``, ``distributed`` and ``io``."""
