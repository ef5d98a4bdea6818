"""Settings of one run: what a preset holds, ``--set key=value`` and files change, and
``settings.json`` saves."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast, get_type_hints

from probattn.experiments.config.data import DataSettings, OwnDataSettings
from probattn.experiments.config.layers import Layer, Network, layer_class
from probattn.experiments.config.parts import (
    LIKELIHOOD,
    LISTING,
    PARTS,
    UNUSED,
    TrainSettings,
    merged_part,
    scaled,
)
from probattn.experiments.config.schema import choices, meanings
from probattn.experiments.config.validation import SettingsError, unknown
from probattn.experiments.config.yaml_files import from_text


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that determines a run, except the folder of the data sets.

    With ``warm_start`` the same network with kernel attention is trained first, for the number of
    epochs given there. Each of the two phases has the whole learning-rate schedule of ``train``.
    """

    data: DataSettings
    network: Network
    layer: Layer
    train: TrainSettings
    warm_start: Any = None

    def __post_init__(self) -> None:
        is_regression = getattr(self.data, "task", "classes") == "regression"
        if is_regression and self.train.class_weights is not None:
            raise SettingsError("train.class_weights are for classes, and data.task is regression")
        if not is_regression and getattr(self.data, "likelihood", LIKELIHOOD) not in UNUSED:
            raise SettingsError(
                "data.likelihood is for numbers: set data.task=regression, or leave it out"
            )
        if getattr(self.layer, "mean", "") == "zero" and getattr(self.layer, "dropout", 0.0):
            raise SettingsError("layer.dropout is that of layer.mean=softmax: set that, too")

    def __reduce__(self) -> tuple:
        """Pickle the values: the classes of the parts are derived, and have no module to be
        imported from."""
        return Settings.from_dict, (asdict(self),)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Settings":
        """Return the settings that a file or a preset holds as nested values; its data may be
        settings already.

        Names of layers and data sets that are not this library's are imported: check what a folder
        holds first (:class:`~probattn.experiments.runs.folder.RunRecord`).

        Raises:
            SettingsError: unknown or missing keys, or invalid values.
        """
        return _merged({}, {"data": {}, "network": {}, "layer": {}, "train": {}} | dict(content))

    def names(self) -> set[str]:
        """Return the names of what may be code of others: layer, data set and likelihood."""
        return {self.layer.name, self.data.name, getattr(self.data, "likelihood", LIKELIHOOD)}

    @property
    def epochs(self) -> int:
        """Epochs of both phases."""
        return self.train.epochs + (self.warm_start.epochs if self.warm_start else 0)

    def with_total_epochs(self, epochs: int) -> "Settings":
        """Return these settings with a total number of epochs; phases, warm-up and annealing are
        scaled in proportion.

        A single epoch has no warm start.
        """
        share = 1 - self.train.epochs / self.epochs
        first = min(max(round(epochs * share), 1), epochs - 1) if self.warm_start else 0
        start = replace(self.warm_start, epochs=first) if first else None
        return replace(self, train=scaled(self.train, epochs - first), warm_start=start)

    def first_phase(self) -> "Settings":
        """Return the settings of the warm start as a run of its own, which early stopping does not
        end."""
        options = asdict(self.warm_start)
        train = replace(scaled(self.train, options.pop("epochs")), patience=None)
        layer = cast(Any, layer_class("kernel"))(last=self.layer.last, **options)
        return replace(self, layer=layer, train=train, warm_start=None)

    def flat(self) -> dict[str, Any]:
        """Return every setting by its dotted key, mappings and lists as JSON; a part that is None
        by its own name."""
        flat: dict[str, Any] = {}
        for name, values in asdict(self).items():
            flat |= (
                {name: None}
                if values is None
                else {f"{name}.{key}": _flat(value) for key, value in values.items()}
            )
        return flat

    def with_changes(self, changes: Iterable[str], *, epochs: int | None = None) -> "Settings":
        """Return these settings with changes ``key=value``, applied together; the last of several
        for a key counts.

        ``epochs`` is their new total (:meth:`with_total_epochs`); training options among the
        changes are not scaled.

        Raises:
            SettingsError: no ``=``, an unknown key (similar ones are suggested), or an invalid
                value.
        """
        nested: dict[str, Any] = {}
        for change in changes:
            key, equals, text = change.partition("=")
            section, _, name = key.partition(".")
            if not equals:
                raise SettingsError(f"--set takes key=value, got {change!r}")
            value = from_text(text)
            nested[section] = (nested.get(section) or {}) | {name: value} if name else value
        settings = self.merged(nested)
        unscaled = {
            name: value for name, value in (nested.get("train") or {}).items() if name != "epochs"
        }
        if epochs is None:
            return settings
        return settings.with_total_epochs(epochs).merged({"train": unscaled})

    def merged(self, nested: Mapping[str, Any]) -> "Settings":
        """Return these settings with other values, as a file of settings holds them: part → setting
        → value.

        ``warm_start: null`` removes the warm start. ``data.name``, ``network.kind`` and
        ``layer.name`` may select another kind, whose other settings have their defaults; those of
        data and networks that both kinds have stay.

        Raises:
            SettingsError: an unknown key (similar ones are suggested), or an invalid value.
        """
        return _merged(vars(self), nested)

    def with_data(self, data: Path | str | None) -> tuple["Settings", Path | None]:
        """Return these settings with a user's own data, and the folder of the data sets; None
        changes nothing.

        Args:
            data: the user's data, or for presets of named data sets the folder of those.

        Raises:
            NotADirectoryError: there is no folder of data sets of that name.
        """
        if data is not None and isinstance(self.data, OwnDataSettings):
            return self.with_changes([f"data.path={data}"]), None
        if data is not None and not Path(data).is_dir():
            raise NotADirectoryError(
                f"{data} is no folder of data sets: correct --data, or create it"
            )
        return self, None if data is None else Path(data)

    def changes_from(self, base: "Settings") -> list[str]:
        """Return the changes as ``key=value`` by which :meth:`with_changes` makes these settings of
        others."""
        assumed = base.flat()
        if type(self.layer) is not type(base.layer):  # another layer starts from its own defaults
            defaults = {
                f"layer.{option.name}": _flat(option.default)
                for option in fields(cast(Any, self.layer))
            }
            assumed |= defaults | {"layer.name": base.layer.name}
        return [
            f"{key}={value}"
            for key, value in self.flat().items()
            if (key, value) not in assumed.items()
        ]


def describe(settings: Settings) -> dict[str, tuple[str, list[str]]]:
    """Return the meaning of each setting, and the values that it takes if it takes only some, by
    its dotted key."""
    described = {}
    for section, value in vars(settings).items():
        if value is None:
            continue
        cls = type(value)
        texts = getattr(cls, "meanings", None) or meanings(cls)
        types = get_type_hints(cls, include_extras=True)
        for option in fields(cls):
            name = option.name
            described[f"{section}.{name}"] = (texts.get(name, ""), choices(types[name]))
    return described


def _merged(parts: Mapping[str, Any], nested: Mapping[str, Any]) -> Settings:
    """Return settings of parts with other values."""
    changed = dict(parts)
    for section, values in nested.items():
        if section not in PARTS:
            raise unknown("setting", section, PARTS, listing=LISTING)
        if isinstance(values, DataSettings):
            changed[section] = values
            continue
        if not isinstance(values, Mapping) and (section, values) != ("warm_start", None):
            raise SettingsError(
                f"{section} needs settings below it, such as {section}.NAME; {LISTING}"
            )
        changed[section] = (
            None if values is None else merged_part(section, parts.get(section), values)
        )
    return Settings(**changed)


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | tuple | list) else value
