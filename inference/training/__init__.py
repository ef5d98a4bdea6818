"""Stochastic variational inference: ``fit``, its options, steps, schedules, logs and checkpoints.

May import ``metrics``, ``prediction`` and what is above them."""
