"""Presets: settings of the papers, small ones on digits, and those for your own data, from ``preset_files``."""

from probattn.experiments.config.settings import Settings
from probattn.experiments.config.validation import unknown
from probattn.experiments.config.yaml_files import packaged

# Files of presets, in the order in which they are listed.
GROUPS = ("own", "digits", "kep-svgp", "cgp", "finetune")
# Variants of other presets on digits (the pairs: KEP-SVGP paper, Table 5); ``--layers all`` leaves them out.
ABLATIONS = ("digits/sgpa-tempered", "digits/kep-svgp-ee", "digits/kep-svgp-rr")


def _build() -> dict[str, Settings]:
    presets: dict[str, Settings] = {}
    for name, content in (item for group in GROUPS for item in packaged(group).items()):
        values = {part: value for part, value in content.items() if part != "base"}
        presets[name] = presets[content["base"]].merged(values) if "base" in content else Settings.from_dict(values)
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


def twin(name: str) -> str | None:
    """Return the softmax baseline of a preset, which differs in the layer alone, or None.

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
    names = [f"digits/{layer.strip()}" for layer in layers.split(",")]
    if layers == "all":
        names = [name for name in PRESETS if name.startswith("digits/") and name not in ABLATIONS]
    return [name for name in dict.fromkeys(names) if preset(name)]
