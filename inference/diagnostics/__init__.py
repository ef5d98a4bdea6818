"""Checks of a posterior and of its network: predictive checks, PSIS, SBC, spectra, collapse of the posterior.

May import ``posterior``, ``metrics``, ``prediction`` and what is above them."""
