"""Settings of one run: what a preset holds, ``--set key=value`` and files change, and ``settings.json`` saves."""

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_type_hints

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
class TrainSettings(TrainOptions):
    """Training of a run.

    Args:
        class_weights: weights of the classes in the loss: balanced gives rare and frequent classes the same weight in
            all; a mapping has weights by name of the class, of which others have 1. Metrics have no weights.
    """

    accelerator: Literal["auto", "cpu", "gpu", "cuda"] = "auto"
    class_weights: Literal["balanced"] | dict[str, float] | None = None

    @property
    def options(self) -> TrainOptions:
        """Options of :func:`~probattn.inference.fit`."""
        return TrainOptions(**{field.name: getattr(self, field.name) for field in fields(TrainOptions)})


@dataclass(frozen=True, kw_only=True)
class _Start:
    """Warm start.

    Args:
        epochs: epochs of kernel attention whose best weights start the run.
    """

    epochs: Count


WarmStartSettings = settings_class("WarmStartSettings", _Start, KernelAttention, leave_out=("dim", "heads"))
# The setting of each part that selects its kind, and the function that returns the kind's class.
SELECTORS: dict[str, tuple[str, Callable[[str], type]]] = {
    "data": ("name", data_class),
    "network": ("kind", network_class),
    "layer": ("name", layer_class),
}
# Classes of the parts of a single kind.
CLASSES = {"train": TrainSettings, "warm_start": WarmStartSettings}
LISTING = "`probattn presets NAME` lists all keys"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that determines a run, except the folder of the data sets.

    With ``warm_start`` the same network with kernel attention is trained first, for the number of epochs given there.
    Each of the two phases has the whole learning-rate schedule of ``train``.
    """

    data: DataSettings
    network: Network
    layer: Layer
    train: TrainSettings
    warm_start: Any = None

    def __post_init__(self) -> None:
        if self.warm_start is not None and self.layer.name == "softmax":
            raise SettingsError("softmax attention cannot start from kernel attention; set warm_start=none")
        if self.train.class_weights is not None and getattr(self.data, "task", "classes") != "classes":
            raise SettingsError("train.class_weights are for classes, and data.task is regression")

    def __reduce__(self) -> tuple:
        """Pickle the values: the classes of the parts are derived, and have no module to be imported from."""
        return Settings.from_dict, (asdict(self),)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Settings":
        """Return the settings that a file or a preset holds as nested values.

        Raises:
            SettingsError: unknown or missing keys, or invalid values.
        """
        content = {"data": {}, "network": {}, "layer": {}, "train": {}} | dict(content)
        return cls(**_changed({}, content))

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
        """Return the settings of the warm start as a run of its own, which early stopping does not end."""
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
                nested[part] = None if text.lower() == "none" else text
        return self.merged(nested)

    def merged(self, nested: Mapping[str, Any]) -> "Settings":
        """Return these settings with other values, as a file of settings holds them: part → setting → value.

        ``warm_start: null`` removes the warm start. ``data.name``, ``network.kind`` and ``layer.name`` may select
        another kind, whose other settings have their defaults; those of data and networks that both kinds have stay.

        Raises:
            SettingsError: an unknown key (similar ones are suggested), or an invalid value.
        """
        return Settings(**_changed({field.name: getattr(self, field.name) for field in fields(self)}, nested))

    def changes_from(self, base: "Settings") -> list[str]:
        """Return the changes as ``key=value`` by which :meth:`with_changes` makes these settings of others.

        A part of another kind has its kind and the values that differ from the kind's defaults.
        """
        assumed = base.flat()
        for part, (selector, _) in SELECTORS.items():
            ours, theirs = getattr(self, part), getattr(base, part)
            if type(ours) is not type(theirs):
                values = {field.name: field.default for field in fields(ours)} | _shared(part, type(ours), theirs)
                assumed |= {f"{part}.{name}": _flat(value) for name, value in values.items() if name != selector}
        return [f"{key}={value}" for key, value in self.flat().items() if (key, value) not in assumed.items()]


class _Text(str):
    """A value from the command line: YAML, or the text itself."""


def describe(settings: Settings) -> dict[str, tuple[str, list[str]]]:
    """Return the meaning of each setting, and the values that it takes if it takes only some, by its dotted key."""
    described = {}
    for part, kind in {field.name: type(getattr(settings, field.name)) for field in fields(settings)}.items():
        if kind is not type(None):
            texts, types = getattr(kind, "meanings", None) or meanings(kind), get_type_hints(kind, include_extras=True)
            described |= {f"{part}.{name}": (texts.get(name, ""), choices(types[name])) for name in _names(kind)}
    return described


def _changed(parts: Mapping[str, Any], nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of settings with other values."""
    known = [field.name for field in fields(Settings)]
    changed = dict(parts)
    for part, values in nested.items():
        if part not in known:
            raise unknown("setting", part, known, listing=LISTING)
        if part == "warm_start" and values is None:
            changed[part] = None
            continue
        if not isinstance(values, Mapping):
            raise SettingsError(f"{part} needs settings below it, such as {part}.NAME; {LISTING}")
        changed[part] = _changed_part(part, parts.get(part), values)
    return changed


def _changed_part(part: str, value: Any, changes: Mapping[str, Any]) -> Any:
    """Return a part of the settings with other values; another kind of it if its selector is among them."""
    selector, class_of = SELECTORS.get(part, ("", None))
    if selector in changes:
        kind = class_of(str(changes[selector]))
    elif value is None and class_of:
        raise SettingsError(f"settings lack {part}.{selector}")
    else:
        kind = CLASSES.get(part) or type(value)
    if part == "warm_start" and value is None and "epochs" not in changes:
        raise SettingsError("these settings have no warm start; give it warm_start.epochs=N as well")
    names, types = _names(kind), get_type_hints(kind, include_extras=True)
    for name in changes:
        if name not in names:
            raise unknown("setting", f"{part}.{name}", [f"{part}.{key}" for key in names], listing=LISTING)
    parsed = {name: _parsed(f"{part}.{name}", text, types[name]) for name, text in changes.items()}
    with readable_errors(part):
        return TypeAdapter(kind).validate_python(_shared(part, kind, value) | parsed)


def _parsed(key: str, value: Any, annotation: Any) -> Any:
    """Return a value of a file, or of the command line, where a text may be YAML or stand for itself.

    Raises:
        SettingsError: a value that the type does not take.
    """
    candidates = [value]
    if isinstance(value, _Text):
        candidates = [str(value)]
        with contextlib.suppress(yaml.YAMLError):
            candidates.insert(0, None if value.lower() == "none" else yaml.safe_load(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        candidates.append(str(value))  # such as a precision of 32
    check = TypeAdapter(annotation, config=CONFIG).validate_python
    for candidate in candidates:
        with contextlib.suppress(ValidationError):
            return check(candidate)
    with readable_errors(key):
        return check(str(value) if isinstance(value, _Text) else value)


def _names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def _shared(part: str, kind: type, value: Any) -> dict[str, Any]:
    """Return the values that a part keeps as a part of a kind: all of the same kind, none of another layer."""
    if value is None or (part == "layer" and not isinstance(value, kind)):
        return {}
    values = {field.name: getattr(value, field.name) for field in fields(value) if field.name in _names(kind)}
    if not isinstance(value, kind):
        values.pop(SELECTORS[part][0])
    return values


def _scaled(train: TrainSettings, epochs: int) -> TrainSettings:
    """Return the options with another number of epochs, and warm-up and annealing in proportion."""
    share = epochs / train.epochs
    warmup, anneal = share * train.warmup_epochs, share * train.kl_anneal_epochs
    return replace(train, epochs=epochs, warmup_epochs=warmup, kl_anneal_epochs=anneal)


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | tuple | list) else value
