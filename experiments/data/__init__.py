"""Data sets of the papers: images, texts, out-of-distribution sets, corruptions.

Imports nothing of the other rooms."""
