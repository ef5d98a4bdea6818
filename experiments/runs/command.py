"""The command that trains a run."""

import shlex

from probattn.experiments.config.presets import PRESETS
from probattn.experiments.config.settings import Settings


def train_command(name: str, settings: Settings) -> str:
    """Return the ``probattn train`` command of a preset with these settings; all of them for a preset that is gone."""
    if name in PRESETS:
        changes = settings.changes_from(PRESETS[name])
    else:
        changes = [f"{key}={value}" for key, value in settings.flat().items()]
    return " ".join(["probattn train", name, *(f"--set {shlex.quote(each)}" for each in changes)])
