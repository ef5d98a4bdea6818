"""Checkpoints, weights as safetensors, folders that share a model, and warm starts.

Imports no other room."""
