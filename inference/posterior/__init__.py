"""Inference of the latent variables with the weights of the network held fixed: refitted guides, NUTS, SGLD.

May import ``prediction`` and the rooms below it.
"""
