"""The ``probattn`` command.

May import every other room."""
