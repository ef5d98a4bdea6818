"""Settings of one run: what a preset holds, ``--set key=value`` and files change, and ``settings.json`` saves."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from probattn import KernelAttention
from probattn.experiments.config.data import DataSettings, data_class
from probattn.experiments.config.layers import Layer, layer_class
from probattn.experiments.config.networks import Network, network_class
from probattn.experiments.config.schema import choices, meanings, settings_class
from probattn.experiments.config.validation import CONFIG, Count, SettingsError, readable_errors, unknown
from probattn.inference import TrainOptions


@dataclass(frozen=True, kw_only=True)
class _Start:
    """Warm start.

    Args:
        epochs: epochs of kernel attention whose best weights start the run.
    """

    epochs: Count


WarmStartSettings = settings_class("WarmStartSettings", _Start, KernelAttention, leave_out=("dim", "heads"))
SELECTORS: dict[str, tuple[str, Callable[[str], type]]] = {
    "data": ("name", data_class),
    "network": ("kind", network_class),
    "layer": ("name", layer_class),
}
"""The setting of each part that selects its kind, and the function that returns the kind's class."""
CLASSES = {"train": TrainOptions, "warm_start": WarmStartSettings}
"""Classes of the parts of a single kind."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that determines a run, except the folder of the data sets.

    With ``warm_start`` the same network with kernel attention is trained first, for the number of epochs given there.
    Each of the two phases has the whole learning-rate schedule of ``train``.
    """

    data: DataSettings
    network: Network
    layer: Layer
    train: TrainOptions
    warm_start: Any = None

    def __post_init__(self) -> None:
        if self.warm_start is not None and self.layer.name == "softmax":
            raise SettingsError("softmax attention cannot start from kernel attention; set warm_start=none")

    def __reduce__(self) -> tuple:
        """Pickle the values: the classes of the parts are derived, and have no module to be imported from."""
        return Settings.from_dict, (asdict(self),)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Settings":
        """Return the settings that a file or a preset holds as nested values.

        Raises:
            SettingsError: unknown or missing keys, or invalid values.
        """
        parts: dict[str, Any] = {"train": _validated("train", TrainOptions, content.get("train") or {})}
        for part, (selector, class_of) in SELECTORS.items():
            values = dict(content.get(part) or {})
            if selector not in values:
                raise SettingsError(f"settings lack {part}.{selector}")
            parts[part] = _validated(part, class_of(values[selector]), values)
        start = content.get("warm_start")
        parts["warm_start"] = start and _validated("warm_start", WarmStartSettings, start)
        return cls(**parts)

    @property
    def epochs(self) -> int:
        """Epochs of both phases."""
        return self.train.epochs + (self.warm_start.epochs if self.warm_start else 0)

    def with_total_epochs(self, epochs: int) -> "Settings":
        """Return these settings with a total number of epochs; phases, warm-up and annealing are scaled in proportion.

        Raises:
            SettingsError: fewer epochs than phases.
        """
        phases = 2 if self.warm_start else 1
        if epochs < phases:
            raise SettingsError(f"{phases} phases need at least {phases} epochs, got {epochs}")
        first = min(max(round(epochs * (1 - self.train.epochs / self.epochs)), phases - 1), epochs - 1)
        start = replace(self.warm_start, epochs=first) if self.warm_start else None
        return replace(self, train=_scaled(self.train, epochs - first), warm_start=start)

    def first_phase(self) -> "Settings":
        """Return the settings of the warm start as a run of its own, which early stopping does not end.

        Raises:
            SettingsError: there is no warm start.
        """
        if self.warm_start is None:
            raise SettingsError("these settings have no warm start")
        options = asdict(self.warm_start)
        train = replace(_scaled(self.train, options.pop("epochs")), patience=None)
        layer = layer_class("kernel")(last=self.layer.last, **options)
        return replace(self, layer=layer, train=train, warm_start=None)

    def flat(self) -> dict[str, Any]:
        """Return every setting by its dotted key, mappings and lists as JSON; a part that is None by its own name."""
        flat = {}
        for part, values in asdict(self).items():
            flat |= {part: None} if values is None else {f"{part}.{key}": _flat(value) for key, value in values.items()}
        return flat

    def with_changes(self, changes: Iterable[str]) -> "Settings":
        """Return these settings with changes ``key=value``, applied together; the last of several for a key counts.

        Raises:
            SettingsError: no ``=``, an unknown key (similar ones are suggested), or an invalid value.
        """
        nested: dict[str, Any] = {}
        for change in changes:
            key, equals, text = change.partition("=")
            part, _, name = key.partition(".")
            if not equals:
                raise SettingsError(f"--set takes key=value, got {change!r}")
            if name:
                nested[part] = (nested.get(part) or {}) | {name: _Text(text)}
            else:
                nested[part] = None if text.lower() == "none" else _Text(text)
        return self.merged(nested)

    def merged(self, nested: Mapping[str, Any]) -> "Settings":
        """Return these settings with other values, as a file of settings holds them: part → setting → value.

        ``warm_start: null`` removes the warm start. ``data.name``, ``network.kind`` and ``layer.name`` may select
        another kind, whose other settings have their defaults; those of data and networks that both kinds have stay.

        Raises:
            SettingsError: an unknown key (similar ones are suggested), or an invalid value.
        """
        parts = {each.name: getattr(self, each.name) for each in fields(self)}
        for part, given in nested.items():
            if part == "warm_start" and given is None:
                parts[part] = None
                continue
            if part not in parts:
                raise unknown("setting", part, parts, listing="`probattn presets NAME` lists all keys")
            if not isinstance(given, Mapping):
                raise SettingsError(f"{part} needs settings below it, such as {part}.{_names(type(parts[part]))[0]}")
            parts[part] = _changed(part, parts[part], given)
        return Settings(**parts)

    def changes_from(self, base: "Settings") -> list[str]:
        """Return the changes as ``key=value`` by which :meth:`with_changes` makes these settings of others.

        Where a part is of another kind, these are its kind and the values that differ from the kind's defaults.
        """
        assumed = base.flat()
        for part, (selector, _) in SELECTORS.items():
            ours, theirs = getattr(self, part), getattr(base, part)
            if type(ours) is not type(theirs):
                values = {each.name: each.default for each in fields(ours)} | _shared(part, type(ours), theirs)
                assumed |= {f"{part}.{name}": _flat(value) for name, value in values.items() if name != selector}
        return [f"{key}={value}" for key, value in self.flat().items() if (key, value) not in assumed.items()]


class _Text(str):
    """A value from the command line: YAML, or the text itself."""


def describe(settings: Settings) -> dict[str, tuple[str, list[str]]]:
    """Return the meaning of each setting, and the values that it takes if it takes only some, by its dotted key."""
    described = {}
    for part in (each.name for each in fields(settings) if getattr(settings, each.name) is not None):
        kind = type(getattr(settings, part))
        texts, types = getattr(kind, "meanings", None) or meanings(kind), get_type_hints(kind, include_extras=True)
        described |= {f"{part}.{name}": (texts.get(name, ""), choices(types[name])) for name in _names(kind)}
    return described


def _changed(part: str, value: Any, given: Mapping[str, Any]) -> Any:
    """Return a part of the settings with other values; another kind of it if its selector is among them."""
    kind, kept = CLASSES.get(part, type(value)), {} if value is None else _values(value)
    if part in SELECTORS and SELECTORS[part][0] in given:
        selector, class_of = SELECTORS[part]
        kind = class_of(str(given[selector]))
        kept = kept if isinstance(value, kind) else _shared(part, kind, value)
    if part == "warm_start" and value is None and "epochs" not in given:
        raise SettingsError("these settings have no warm start; give it warm_start.epochs=N as well")
    types = get_type_hints(kind, include_extras=True)
    for name in given:
        if name not in _names(kind):
            keys = [f"{part}.{each}" for each in _names(kind)]
            raise unknown("setting", f"{part}.{name}", keys, listing="`probattn presets NAME` lists all keys")
    parsed = {name: _parsed(f"{part}.{name}", each, types[name]) for name, each in given.items()}
    return _validated(part, kind, kept | parsed)


def _parsed(key: str, value: Any, annotation: Any) -> Any:
    """Return a value of a file, or of the command line, where a text may be YAML or stand for itself.

    Raises:
        SettingsError: a value that the type does not take.
    """
    candidates = [value]
    if isinstance(value, _Text):
        text = str(value)
        if not text.isprintable():
            raise SettingsError(f"{key}: not a printable text, got {text!r}")
        try:
            candidates = [None if text.lower() == "none" else yaml.safe_load(text), text]
        except yaml.YAMLError:
            candidates = [text]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        candidates.append(str(value))  # such as a precision of 32
    check = TypeAdapter(annotation, config=CONFIG).validate_python
    for candidate in candidates:
        try:
            return check(candidate)
        except ValidationError:
            continue
    with readable_errors(key):
        return check(candidates[-1] if isinstance(value, _Text) else value)


def _validated(part: str, kind: type, values: Mapping[str, Any]) -> Any:
    with readable_errors(part):
        return TypeAdapter(kind).validate_python(dict(values))


def _values(part: Any) -> dict[str, Any]:
    return {each.name: getattr(part, each.name) for each in fields(part)}


def _names(kind: type) -> list[str]:
    return [each.name for each in fields(kind)]


def _shared(part: str, kind: type, old: Any) -> dict[str, Any]:
    """Return the values that a part keeps when it becomes of another kind: none of layers."""
    kept = () if part == "layer" else set(_names(kind)) - {SELECTORS[part][0]}
    return {name: value for name, value in _values(old).items() if name in kept}


def _scaled(train: TrainOptions, epochs: int) -> TrainOptions:
    """Return the options with another number of epochs, and warm-up and annealing in proportion."""
    share = epochs / train.epochs
    warmup, anneal = share * train.warmup_epochs, share * train.kl_anneal_epochs
    return replace(train, epochs=epochs, warmup_epochs=warmup, kl_anneal_epochs=anneal)


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | tuple | list) else value
