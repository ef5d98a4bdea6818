"""Kinds of data, networks and layers by the name that selects them."""

from difflib import get_close_matches
from typing import get_args

from probattn.experiments.config.data import OWN, DataSettings
from probattn.experiments.config.layers import LayerSettings
from probattn.experiments.config.networks import EncoderSettings, TabularSettings, TextSettings, ViTSettings
from probattn.experiments.config.validation import SettingsError

SELECTORS = {"data": "name", "network": "kind", "layer": "name"}
"""The setting of each part that selects its kind."""
LAYERS = {each.name: each for each in get_args(get_args(LayerSettings)[0])}
"""Settings of each layer by its name."""
NETWORKS = {"vit": ViTSettings, "text": TextSettings, "encoder": EncoderSettings, "tabular": TabularSettings}
"""Settings of each network by its kind."""


def class_of(part: str, name: str) -> type:
    """Return the settings' class of a kind; data sets that are not a user's own are one class.

    Raises:
        SettingsError: an unknown name.
    """
    if part == "data":
        return OWN.get(name, DataSettings)
    known = {"layer": LAYERS, "network": NETWORKS}[part]
    if name not in known:
        near = get_close_matches(name, known, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise SettingsError(f"unknown {part} {name!r}; {guess}known: {', '.join(known)}")
    return known[name]
