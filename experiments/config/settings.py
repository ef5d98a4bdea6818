"""Settings of one run: what a preset holds, ``--set key=value`` changes and ``settings.json`` saves."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, field_validator
from pydantic.dataclasses import dataclass

from probattn.experiments.config.data import AnyDataSettings
from probattn.experiments.config.kinds import SELECTORS, class_of
from probattn.experiments.config.layers import KernelSettings, LayerSettings, SoftmaxSettings
from probattn.experiments.config.networks import NetworkSettings
from probattn.experiments.config.validation import STRICT, Count, SettingsError, readable_errors
from probattn.inference import TrainOptions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WarmStartSettings:
    """Epochs of kernel attention whose best weights start the run, and the options of that attention."""

    epochs: Count
    kernel: Literal["rbf", "ard", "exponential"] = "rbf"
    symmetric: bool = False
    variance: float = 1.0
    bias: bool = False


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Everything that determines a run, except the folder of the data sets.

    With ``warm_start`` the same network with kernel attention is trained first, for the number of epochs given there.
    Each of the two phases has the whole learning-rate schedule of ``train``.
    """

    data: AnyDataSettings
    network: NetworkSettings
    layer: LayerSettings
    train: TrainOptions
    warm_start: WarmStartSettings | None = None

    @field_validator("train", mode="before")
    @classmethod
    def _without_capture(cls, train: Any) -> Any:
        """Leave out an option that older runs saved."""
        return {name: train[name] for name in train if name != "capture"} if isinstance(train, dict) else train

    def __post_init__(self) -> None:
        if self.warm_start is not None and isinstance(self.layer, SoftmaxSettings):
            raise ValueError("softmax attention cannot start from kernel attention; set warm_start=none")

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
        return replace(self, layer=KernelSettings(last=self.layer.last, **options), train=train, warm_start=None)

    def flat(self) -> dict[str, Any]:
        """Return every setting by its dotted key, mappings and lists as JSON; a part that is None by its own name."""
        flat = {}
        for part, values in asdict(self).items():
            flat |= {part: None} if values is None else {f"{part}.{key}": _flat(value) for key, value in values.items()}
        return flat

    def with_changes(self, changes: Iterable["str | Change"]) -> "Settings":
        """Return these settings with changes applied together; the last of several for a key counts.

        ``warm_start=none`` removes the warm start, ``warm_start.epochs=N`` adds one. ``data.name``, ``network.kind``
        and ``layer.name`` may select another kind, whose other settings have their defaults; those of data and networks
        that both kinds have stay.

        Args:
            changes: ``key=value`` or :class:`Change`.

        Raises:
            SettingsError: no ``=``, an unknown key (similar ones are suggested), or an invalid value.
        """
        listed = [each if isinstance(each, Change) else Change.parse(each) for each in changes]
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        for part, kind in _selected(parts, listed).items():
            parts[part] = kind
        kinds = {part: value if isinstance(value, type) else type(value) for part, value in parts.items()}
        kinds["warm_start"] = WarmStartSettings
        types = {f"{part}.{name}": each for part, kind in kinds.items() for name, each in _types(kind).items()}
        values: dict[str, dict[str, Any]] = {}
        for change in listed:
            key, text, _ = change
            if (key, text.lower()) == ("warm_start", "none"):
                parts["warm_start"] = None
                values.pop("warm_start", None)
                continue
            if key not in types:
                near = get_close_matches(key, types, n=3)
                guess = f"did you mean {' or '.join(near)}? " if near else ""
                same = [each for each in types if each.startswith(f"{key.partition('.')[0]}.")]
                known = f"known keys: {', '.join(same)}" if same else "`probattn presets NAME` lists all keys"
                raise SettingsError(f"{change.where}unknown key {key!r}; {guess}{known}")
            part, name = key.split(".")
            with _located(change):
                values.setdefault(part, {})[name] = _parse(key, text, types[key])
        if parts["warm_start"] is None and "epochs" not in values.get("warm_start", {"epochs"}):
            raise SettingsError("these settings have no warm start; give it warm_start.epochs=N as well")
        for part, new in values.items():
            parts[part] = _changed(parts[part], kinds[part], new, getattr(self, part), part=part, changes=listed)
        with readable_errors():
            return Settings(**parts)

    def changes_from(self, base: "Settings") -> list[str]:
        """Return the changes as ``key=value`` by which :meth:`with_changes` makes these settings of others.

        Where a part is of another kind, these are its kind and the values that differ from the kind's defaults.
        """
        assumed = base.flat()
        for part, selector in SELECTORS.items():
            ours, theirs = getattr(self, part), getattr(base, part)
            if type(ours) is not type(theirs):
                values = {each.name: each.default for each in fields(ours)} | _kept(type(ours), theirs, part=part)
                assumed |= {f"{part}.{name}": _flat(value) for name, value in values.items() if name != selector}
        return [f"{key}={value}" for key, value in self.flat().items() if (key, value) not in assumed.items()]


class Change(NamedTuple):
    """A change of a setting.

    Attributes:
        key: dotted key, such as ``train.epochs``.
        text: value, a mapping or list as JSON.
        place: file and line that it comes from; empty for the command line.
    """

    key: str
    text: str
    place: str = ""

    @classmethod
    def parse(cls, assignment: str) -> "Change":
        """Parse ``key=value``.

        Raises:
            SettingsError: no ``=``.
        """
        key, equals, text = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set takes key=value, got {assignment!r}")
        return cls(key, text)

    @property
    def where(self) -> str:
        """Beginning of an error message."""
        return f"{self.place}: " if self.place else ""


def from_json(text: str | bytes) -> Settings:
    """Parse settings from JSON, as ``settings.json`` and exported weights hold them.

    Raises:
        SettingsError: unknown or missing keys, or invalid values.
    """
    with readable_errors():
        return TypeAdapter(Settings).validate_json(text)


def choices(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return the values of each setting that takes only some, by its dotted key."""
    found = {}
    for part in fields(settings):
        value = getattr(settings, part.name)
        for name, annotation in ({} if value is None else _types(type(value))).items():
            if each := tuple(dict.fromkeys(_choices(annotation))):
                found[f"{part.name}.{name}"] = each
    return found


def _choices(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif annotation is bool:
        yield from ("true", "false")
    else:
        for each in get_args(annotation):
            yield from _choices(each)


def _types(kind: type) -> dict[str, Any]:
    """Return the annotation of each setting of a class."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def _selected(parts: dict[str, Any], changes: Iterable[Change]) -> dict[str, type]:
    """Return the class of each part of which the changes select another kind."""
    found = {}
    for change in changes:
        part, _, name = change.key.partition(".")
        if SELECTORS.get(part) == name:
            with _located(change):
                kind = class_of(part, change.text)
            if kind is not type(parts[part]):
                found[part] = kind
    return found


def _kept(kind: type, old: Any, *, part: str) -> dict[str, Any]:
    """Return the values that a part keeps when it becomes of another kind: none of layers."""
    common = _types(type(old)).keys() & _types(kind).keys() - {SELECTORS[part]} if part != "layer" else ()
    return {name: getattr(old, name) for name in common}


def _changed(value: Any, kind: type, new: dict[str, Any], old: Any, *, part: str, changes: Iterable[Change]) -> Any:
    """Return a part of the settings with new values; if it is to be of another kind, with the values that both have."""

    def build(given: dict[str, Any]) -> Any:
        if isinstance(value, type):
            given = _kept(kind, old, part=part) | given
        return replace(value, **given) if value is not None and not isinstance(value, type) else kind(**given)

    try:
        with readable_errors():
            return build(new)
    except SettingsError as error:
        for change in changes:  # the place of a value that is wrong by itself
            if change.place and change.key.startswith(f"{part}."):
                name = change.key.partition(".")[2]
                with _located(change), readable_errors():
                    build({each: new[each] for each in (name, SELECTORS.get(part)) if each in new})
        raise error


@contextmanager
def _located(change: Change) -> Iterator[None]:
    """Begin the message of an error with the place of a change."""
    try:
        yield
    except SettingsError as error:
        raise SettingsError(f"{change.where}{error}") from error


def _parse(key: str, text: str, annotation: Any) -> Any:
    """Parse a value given on the command line or in a file; mappings and lists as JSON."""
    if any("\ud800" <= character <= "\udfff" for character in text):  # JSON holds no surrogates
        raise SettingsError(f"{key}: not valid UTF-8, got {text!r}")
    if text.lower() == "none" and type(None) in get_args(annotation):
        return None
    with readable_errors(key):
        if text.startswith(("{", "[")):
            return TypeAdapter(annotation, config=STRICT).validate_json(text)
        return TypeAdapter(annotation, config=STRICT).validate_strings(text)


def _scaled(train: TrainOptions, epochs: int) -> TrainOptions:
    """Return the options with another number of epochs, and warm-up and annealing in proportion."""
    share = epochs / train.epochs
    warmup, anneal = share * train.warmup_epochs, share * train.kl_anneal_epochs
    return replace(train, epochs=epochs, warmup_epochs=warmup, kl_anneal_epochs=anneal)


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | tuple) else value
