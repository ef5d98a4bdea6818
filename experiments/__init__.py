"""Data sets, presets, the `probattn` command, reports and benchmarks."""

import sys
from pathlib import Path

from probattn.inference.imports import MissingExtraError, extra

try:
    with extra("cli", needed_by="probattn.experiments"):
        import jinja2  # noqa: F401
        import pydantic  # noqa: F401
        import rich  # noqa: F401
        import typer  # noqa: F401
except MissingExtraError as error:
    if Path(sys.argv[0]).stem not in ("probattn", "-m"):
        raise
    raise SystemExit(f"error: {error}") from None  # the command prints the advice alone
