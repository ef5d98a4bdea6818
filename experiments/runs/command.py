"""The command that trains a run."""

import shlex

from probattn.experiments.config.presets import PRESETS
from probattn.experiments.config.settings import Settings


def train_command(name: str, settings: Settings) -> str:
    """Return the ``probattn train`` command of a preset with these settings."""
    defaults = PRESETS[name].flat() if name in PRESETS else {}
    changes = [
        f"--set {shlex.quote(f'{key}={value}')}"
        for key, value in settings.flat().items()
        if (key, value) not in defaults.items()
    ]
    return " ".join(["probattn train", name, *changes])
