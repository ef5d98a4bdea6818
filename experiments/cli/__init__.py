"""The ``probattn`` command.

May import every other room."""

from probattn.inference.imports import without_side_effects

with without_side_effects():
    import rich.style  # noqa: F401
