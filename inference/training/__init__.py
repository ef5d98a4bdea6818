"""Stochastic variational inference: ``fit``, its options, its loop, optimisers and logs."""
