"""Entry point of the ``probattn`` command, outside the package, whose import takes seconds."""

import sys


def main() -> None:
    """Run the command; Ctrl-C while it starts, and a missing extra, are one line."""
    try:
        from probattn.experiments.cli.main import main as command

        command()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except ImportError as error:
        if type(error).__name__ != "MissingExtraError":
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
