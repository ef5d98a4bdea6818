"""``python -m probattn.experiments`` is the ``probattn`` command."""

from probattn.experiments.cli.main import main

if __name__ == "__main__":
    main()
