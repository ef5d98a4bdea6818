"""Entry point of the ``probattn`` command, outside the package, whose import takes seconds."""

import sys


def main() -> None:
    """Run the command; Ctrl-C while it starts ends it with one line and status 130, as Ctrl-C later does."""
    try:
        from probattn.experiments.cli.main import main as command

        command()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        raise SystemExit(130) from None
