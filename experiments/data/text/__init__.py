"""Text data sets, their tokens and their loader."""
