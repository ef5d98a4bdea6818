"""Texts: the corpora, what they are cut into, and batches of them."""
