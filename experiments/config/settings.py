"""The settings of one run: what a preset is, what ``--set key=value`` changes, what ``settings.json`` keeps."""

import math
import types
import typing
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Literal

from probattn.experiments.config.layers import (
    LAYERS,
    CGPSettings,
    KEPSVGPSettings,
    KernelSettings,
    LayerSettings,
    SGPASettings,
    SoftmaxSettings,
    SparseCGPSettings,
    check_positive,
)
from probattn.experiments.config.networks import NETWORKS, DataSettings, NetworkSettings, TextSettings, ViTSettings
from probattn.inference import TrainOptions

__all__ = [
    "LAYERS",
    "NETWORKS",
    "CGPSettings",
    "DataSettings",
    "KEPSVGPSettings",
    "KernelSettings",
    "LayerSettings",
    "NetworkSettings",
    "SGPASettings",
    "Settings",
    "SettingsError",
    "SoftmaxSettings",
    "SparseCGPSettings",
    "TextSettings",
    "ViTSettings",
    "WarmStartSettings",
    "from_dict",
]


class SettingsError(ValueError):
    """An unknown preset or key, or a value that does not fit."""


@dataclass(frozen=True, kw_only=True)
class WarmStartSettings:
    """Epochs of kernel attention whose best weights start the run, and the options of that attention."""

    epochs: int
    kernel: Literal["rbf", "ard", "exponential"] = "rbf"
    symmetric: bool = False
    variance: float = 1.0
    bias: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "epochs")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that makes a run, apart from where its data lie.

    With ``warm_start`` the same network with kernel attention is trained first, for the epochs given there, each of
    the two phases with the whole schedule of learning rates of ``train``.
    """

    data: DataSettings
    network: NetworkSettings
    layer: LayerSettings
    train: TrainOptions = field(default_factory=TrainOptions)
    warm_start: WarmStartSettings | None = None

    def __post_init__(self) -> None:
        if self.warm_start is not None and isinstance(self.layer, SoftmaxSettings):
            raise ValueError("softmax attention cannot start from kernel attention; set warm_start=none")

    @property
    def epochs(self) -> int:
        """Epochs of both phases."""
        return self.train.epochs + (self.warm_start.epochs if self.warm_start else 0)

    def with_total_epochs(self, epochs: int) -> "Settings":
        """These settings with so many epochs in all, and every phase, warm-up and annealing in proportion.

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
        """The settings of the warm start as a run of its own.

        Raises:
            SettingsError: there is none.
        """
        if self.warm_start is None:
            raise SettingsError("these settings have no warm start")
        options = asdict(self.warm_start)
        train = _scaled(self.train, options.pop("epochs"))
        return replace(self, layer=KernelSettings(last=self.layer.last, **options), train=train, warm_start=None)

    def flat(self) -> dict[str, Any]:
        """Every setting by its dotted key; a part that is None by its own name."""
        flat = {}
        for part, values in asdict(self).items():
            flat |= {part: None} if values is None else {f"{part}.{key}": value for key, value in values.items()}
        return flat

    def with_changes(self, assignments: Iterable[str]) -> "Settings":
        """These settings with ``key=value`` changes, made together: the last counts where a key comes twice.

        ``warm_start=none`` takes the warm start away, ``warm_start.epochs=N`` adds one.

        Raises:
            SettingsError: no ``=``, an unknown key, or a value of another kind or out of bounds, named with what is
                known.
        """
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        kinds = {name: type(part) for name, part in parts.items()} | {"warm_start": WarmStartSettings}
        known = [f"{name}.{field.name}" for name, kind in kinds.items() for field in fields(kind)]
        changes: dict[str, dict[str, Any]] = {}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals:
                raise SettingsError(f"--set takes key=value, got {assignment!r}")
            if (key, text.lower()) == ("warm_start", "none"):
                parts["warm_start"] = None
                changes.pop("warm_start", None)
                continue
            if key not in known:
                near = get_close_matches(key, known, n=3)
                guess = f"did you mean {' or '.join(near)}? " if near else ""
                raise SettingsError(f"unknown key {key!r}; {guess}known keys: {', '.join(known)}")
            part, name = key.split(".")
            changes.setdefault(part, {})[name] = _parse(key, text, typing.get_type_hints(kinds[part])[name])
        if parts["warm_start"] is None and "epochs" not in changes.get("warm_start", {"epochs"}):
            raise SettingsError("these settings have no warm start; give it warm_start.epochs=N as well")
        try:
            for part, new in changes.items():
                parts[part] = kinds[part](**new) if parts[part] is None else replace(parts[part], **new)
            return Settings(**parts)
        except ValueError as error:
            raise SettingsError(str(error)) from error


def from_dict(values: dict[str, dict[str, Any] | None]) -> Settings:
    """Settings from what ``asdict`` made of them, as ``settings.json`` holds it; without ``warm_start`` there is none.

    Raises:
        SettingsError: keys that this version does not know or lacks, values of another kind or out of bounds.
    """
    try:
        kinds = {"data": DataSettings, "layer": LAYERS[values["layer"]["name"]], "train": TrainOptions}
        kinds["network"] = NETWORKS[values["network"].get("kind", "vit")]
        if values.get("warm_start") is not None:
            kinds["warm_start"] = WarmStartSettings
        for part, kind in kinds.items():
            hints = typing.get_type_hints(kind)
            for key, value in values[part].items():
                if key in hints and not _fits(value, hints[key]):
                    raise SettingsError(f"{part}.{key} cannot be {value!r}")
        return Settings(**{part: kind(**values[part]) for part, kind in kinds.items()})
    except (KeyError, TypeError, AttributeError) as error:
        raise SettingsError(f"these settings are of another version of probattn: {error}") from error
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _parse(key: str, text: str, kind: Any) -> Any:
    kinds = _alternatives(kind)
    words = [each for each in kinds if isinstance(each, str)]
    if text in words:
        return text
    if type(None) in kinds and text.lower() == "none":
        return None
    if words:
        raise SettingsError(f"{key} is one of {', '.join(words)}, got {text!r}")
    kinds = [each for each in kinds if each is not type(None)]
    for each in kinds:
        try:
            value = {"true": True, "false": False}[text.lower()] if each is bool else each(text)
        except (ValueError, KeyError):
            continue
        if each is float and not math.isfinite(value):
            raise SettingsError(f"{key} takes a finite number, got {text!r}")
        return value
    known = " or ".join("true or false" if each is bool else each.__name__ for each in kinds)
    raise SettingsError(f"{key} takes {known}, got {text!r}")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value read from JSON is of a field's kind."""
    kinds = _alternatives(kind)
    allowed = tuple(each for each in kinds if isinstance(each, type))
    if isinstance(value, bool):
        return bool in allowed
    return value in kinds or isinstance(value, allowed) or (float in allowed and isinstance(value, int))


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """What an annotation allows: types, and the words of a Literal."""
    if typing.get_origin(kind) is Literal:
        return typing.get_args(kind)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return tuple(each for part in typing.get_args(kind) for each in _alternatives(part))
    return (kind,)


def _scaled(train: TrainOptions, epochs: int) -> TrainOptions:
    """The options with so many epochs, and warm-up and annealing in proportion."""
    share = epochs / train.epochs
    warmup, anneal = share * train.warmup_epochs, share * train.kl_anneal_epochs
    return replace(train, epochs=epochs, warmup_epochs=warmup, kl_anneal_epochs=anneal)
