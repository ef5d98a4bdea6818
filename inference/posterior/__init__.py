"""Posterior of the latent variables with the network fixed: a refitted guide, NUTS, SGLD.

May import ``prediction`` and what is above it."""
