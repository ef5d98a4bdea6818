"""Trained networks as plain PyTorch modules and ``torch.export`` programs.

May import ``prediction`` and what is above it."""
