"""Inference of the latent variables with the weights of the network held fixed: refitted guides,
NUTS, SGLD.

May import ``io``, ``distributed`` and ``prediction``.
"""
