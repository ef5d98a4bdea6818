"""Entry point of the ``probattn`` command, outside the package, whose import takes seconds."""

import sys
from collections.abc import Callable


def main() -> None:
    """Run the command; Ctrl-C while it starts ends it with one line and status 130, as Ctrl-C later does.

    Without the extra ``cli`` one line names it.
    """
    try:
        command = _import_command()
        command()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        raise SystemExit(130) from None


def _import_command() -> Callable[[], None]:
    try:
        from probattn.experiments.cli.main import main as command
    except ImportError as error:
        from probattn.inference.imports import MissingExtraError

        if not isinstance(error, MissingExtraError):
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    return command
