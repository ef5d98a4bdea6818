"""Data sets: images, texts, out-of-distribution (OOD) sets and corruptions.

Imports no other room."""
