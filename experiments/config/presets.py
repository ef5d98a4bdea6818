"""Presets: settings of the papers, small ones on digits, and those for your own data, from ``preset_files``."""

import functools
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from probattn.experiments.config import yaml_files
from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import SettingsError, unknown

GROUPS = ("own", "digits", "kep-svgp", "cgp", "finetune")
"""Files of presets, in the order in which they are listed."""
ABLATIONS = ("digits/sgpa-tempered", "digits/kep-svgp-ee", "digits/kep-svgp-rr")
"""Variants of other presets on digits (the pairs: KEP-SVGP paper, Table 5); ``--layers all`` leaves them out."""


class _Presets(Mapping[str, Settings]):
    """The presets by name; each is built when it is first used."""

    @functools.cached_property
    def _contents(self) -> dict[str, dict[str, Any]]:
        folder = files("probattn.experiments.config") / "preset_files"
        contents: dict[str, dict[str, Any]] = {}
        for group in GROUPS:
            contents |= yaml_files.parse((folder / f"{group}.yaml").read_text(encoding="utf-8"), f"{group}.yaml")
        return contents

    def __getitem__(self, name: str) -> Settings:
        return _build(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._contents)

    def __len__(self) -> int:
        return len(self._contents)

    def content(self, name: str) -> dict[str, Any]:
        """Return what the file of a preset says of it: settings, and the preset that it starts from as ``base``."""
        return self._contents[name]


PRESETS = _Presets()


@functools.cache
def _build(name: str) -> Settings:
    content = dict(PRESETS.content(name))
    base = content.pop("base", None)
    return Settings.from_dict(content) if base is None else _build(base).merged(content)


def preset(name: str) -> Settings:
    """Return the settings of a preset.

    Raises:
        SettingsError: an unknown name; similar ones are suggested.
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS, listing="`probattn presets` lists all")
    return PRESETS[name]


def twin(name: str) -> str | None:
    """Return the softmax baseline of a preset, which differs in the layer alone; None where there is none.

    Args:
        name: ``PAPER/DATA-LAYER``, or ``digits/LAYER``.
    """
    paper, _, rest = name.partition("/")
    softmax = "digits/softmax" if paper == "digits" else f"{paper}/{rest.partition('-')[0]}-softmax"
    return softmax if softmax in PRESETS else None


def digits(layers: str) -> list[str]:
    """Return the names of the digits presets of some layers.

    Args:
        layers: comma-separated layers, such as ``"softmax,cgp"``, or ``"all"``: each layer once, without ablations.

    Raises:
        SettingsError: an unknown layer.
    """
    known = [name.removeprefix("digits/") for name in PRESETS if name.startswith("digits/")]
    each_once = [name for name in known if f"digits/{name}" not in ABLATIONS]
    chosen = each_once if layers == "all" else [layer.strip() for layer in layers.split(",")]
    unknown_layers = [layer for layer in chosen if layer not in known]
    if unknown_layers:
        raise SettingsError(f"unknown layers {', '.join(unknown_layers)}; known: all, or some of {','.join(known)}")
    return [f"digits/{layer}" for layer in dict.fromkeys(chosen)]
