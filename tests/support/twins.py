"""The softmax baselines of the papers' presets."""

from probattn.experiments.config.presets import PRESETS


def twin(name):
    """The softmax preset that differs from a preset ``PAPER/DATA-LAYER`` or ``digits/LAYER`` in the
    layer alone."""
    paper, _, rest = name.partition("/")
    softmax = "digits/softmax" if paper == "digits" else f"{paper}/{rest.partition('-')[0]}-softmax"
    return softmax if softmax in PRESETS else None
