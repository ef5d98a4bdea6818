"""Settings of one run: what a preset holds, ``--set key=value`` changes and ``settings.json`` saves."""

import json
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_type_hints

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from probattn.experiments.config.layers import KernelSettings, LayerSettings, SoftmaxSettings
from probattn.experiments.config.networks import DataSettings, NetworkSettings
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

    data: DataSettings
    network: NetworkSettings
    layer: LayerSettings
    train: TrainOptions
    warm_start: WarmStartSettings | None = None

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
        """Return the settings of the warm start as a run of its own.

        Raises:
            SettingsError: there is no warm start.
        """
        if self.warm_start is None:
            raise SettingsError("these settings have no warm start")
        options = asdict(self.warm_start)
        train = _scaled(self.train, options.pop("epochs"))
        return replace(self, layer=KernelSettings(last=self.layer.last, **options), train=train, warm_start=None)

    def flat(self) -> dict[str, Any]:
        """Return every setting by its dotted key, a mapping as JSON; a part that is None by its own name."""
        flat = {}
        for part, values in asdict(self).items():
            flat |= {part: None} if values is None else {f"{part}.{key}": _flat(value) for key, value in values.items()}
        return flat

    def with_changes(self, assignments: Iterable[str]) -> "Settings":
        """Return these settings with ``key=value`` changes applied together; the last of several for a key counts.

        ``warm_start=none`` removes the warm start, ``warm_start.epochs=N`` adds one.

        Raises:
            SettingsError: no ``=``, an unknown key (similar ones are suggested), or an invalid value.
        """
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        kinds = {part: type(value) for part, value in parts.items()} | {"warm_start": WarmStartSettings}
        types = {f"{part}.{name}": each for part, kind in kinds.items() for name, each in _types(kind).items()}
        changes: dict[str, dict[str, Any]] = {}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals:
                raise SettingsError(f"--set takes key=value, got {assignment!r}")
            if (key, text.lower()) == ("warm_start", "none"):
                parts["warm_start"] = None
                changes.pop("warm_start", None)
                continue
            if key not in types:
                near = get_close_matches(key, types, n=3)
                guess = f"did you mean {' or '.join(near)}? " if near else ""
                raise SettingsError(f"unknown key {key!r}; {guess}known keys: {', '.join(types)}")
            part, name = key.split(".")
            changes.setdefault(part, {})[name] = _parse(key, text, types[key])
        if parts["warm_start"] is None and "epochs" not in changes.get("warm_start", {"epochs"}):
            raise SettingsError("these settings have no warm start; give it warm_start.epochs=N as well")
        with readable_errors():
            for part, new in changes.items():
                parts[part] = kinds[part](**new) if parts[part] is None else replace(parts[part], **new)
            return Settings(**parts)


def from_json(text: str | bytes) -> Settings:
    """Parse settings from JSON, as ``settings.json`` and exported weights hold them.

    Raises:
        SettingsError: unknown or missing keys, or invalid values.
    """
    with readable_errors():
        return TypeAdapter(Settings).validate_json(text)


def _types(kind: type) -> dict[str, Any]:
    """Return the annotation of each setting of a class."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def _parse(key: str, text: str, annotation: Any) -> Any:
    """Parse a value given on the command line; a mapping as JSON."""
    if any("\ud800" <= character <= "\udfff" for character in text):  # JSON holds no surrogates
        raise SettingsError(f"{key}: not valid UTF-8, got {text!r}")
    if text.lower() == "none" and type(None) in get_args(annotation):
        return None
    with readable_errors(key):
        if text.startswith("{"):
            return TypeAdapter(annotation, config=STRICT).validate_json(text)
        return TypeAdapter(annotation, config=STRICT).validate_strings(text)


def _scaled(train: TrainOptions, epochs: int) -> TrainOptions:
    """Return the options with another number of epochs, and warm-up and annealing in proportion."""
    share = epochs / train.epochs
    warmup, anneal = share * train.warmup_epochs, share * train.kl_anneal_epochs
    return replace(train, epochs=epochs, warmup_epochs=warmup, kl_anneal_epochs=anneal)


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value
