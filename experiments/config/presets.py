"""Presets: settings of the papers, small ones on digits, and those for your own data, from
``preset_files``."""

from dataclasses import asdict, replace
from typing import Any, cast

from probattn.experiments.config.layers import layer_class
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import unknown
from probattn.experiments.config.yaml_files import packaged
from probattn.models.layer_records import LAYERS, LayerRecord

# Learning rate of the guide of layers without another one.
GUIDE_LR = 0.03
# Files of presets, in the order in which they are listed.
GROUPS = ("own", "digits", "kep-svgp", "cgp", "rff-gpa", "finetune")


def _build() -> dict[str, Settings]:
    presets: dict[str, Settings] = {}
    for group in GROUPS:
        for name, content in packaged(group).items():
            values = dict(content)
            base = values.pop("base", None)
            presets[name] = presets[base].merged(values) if base else Settings.from_dict(values)
    return presets


# The presets by name, in the order of their files; one may start from another, its ``base``.
PRESETS = _build()


def preset(name: str) -> Settings:
    """Return the settings of a preset.

    Raises:
        SettingsError: an unknown name; similar ones are suggested.
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS, listing="`probattn presets` lists all")
    return PRESETS[name]


def with_layer(settings: Settings, name: str) -> Settings:
    """Return settings with another layer for the same total of epochs; its record says what it
    needs.

    Args:
        settings: of a preset.
        name: name of a layer, or ``package.module:Class`` of your own, which has its constructor's
            defaults.

    Raises:
        SettingsError: an unknown name.
    """
    if name == settings.layer.name:
        return settings
    network = settings.network.kind
    total = settings.epochs
    of_own = LayerRecord(layer=name, meaning="", training={"guide_lr": GUIDE_LR})
    about = LAYERS.get(name, of_own).training
    layer = _layer_options(name, network)
    start = 0 if network in ("text", "encoder") else round(about.get("start", 0) * total)
    train = {"guide_lr": about.get("guide_lr"), "alpha_start": about.get("alpha_start", 1.0)}
    train |= {"alpha_end": 1.0, "epochs": total - start}
    warm_start = {"epochs": start, **about.get("warm_start", {})} if start else None
    return replace(settings, warm_start=None).merged(
        {"layer": layer, "train": train, "warm_start": warm_start}
    )


def changed_defaults(settings: Settings) -> dict[str, Any]:
    """Return what a layer has by its name where these settings differ, by key such as
    ``layer.rank``."""
    name = settings.layer.name
    layer = layer_class(name)(**_layer_options(name, settings.network.kind))
    return {
        f"layer.{option}": default
        for option, default in asdict(cast(Any, layer)).items()
        if default != getattr(settings.layer, option)
    }


def _layer_options(name: str, network: str) -> dict[str, Any]:
    """Return the options that a layer has by its name in a kind of network, besides the defaults of
    its settings."""
    record = LAYERS.get(name, LayerRecord(layer=name, meaning=""))
    if network == "encoder":
        return {"name": name, **record.text, "last": 0 if name == "softmax" else 1}
    return {"name": name, **getattr(record, network)}
