"""Data sets, presets, the `probattn` command, reports and benchmarks."""

from probattn.inference.imports import extra

with extra("cli", needed_by="probattn.experiments"):
    import jinja2  # noqa: F401
    import pydantic  # noqa: F401
    import rich  # noqa: F401
    import typer  # noqa: F401
