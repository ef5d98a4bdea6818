"""Attention layers, each a Pyro program in a file of its own."""
