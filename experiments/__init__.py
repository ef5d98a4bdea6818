"""Data sets, presets, the `probattn` command, reports and benchmarks."""

from probattn.inference.imports import require_extra

require_extra("cli", "jinja2", "pydantic", "rich", "typer", needed_by="probattn.experiments")
