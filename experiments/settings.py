"""The settings of one run: what a preset is, what ``--set key=value`` changes, what ``settings.json`` keeps."""

import math
import types
import typing
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from typing import Any, ClassVar, Literal

from probattn import KEPSVGPAttention, SoftmaxAttention
from probattn.attention.base import LayerFactory
from probattn.inference import TrainOptions


class SettingsError(ValueError):
    """An unknown preset or key, or a value that does not fit."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which data, and the seed of its validation split; ``limit`` keeps so many training images."""

    name: str
    batch_size: int
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_positive(self, "batch_size", "limit")


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The vision transformer."""

    patch_size: int
    dim: int
    depth: int
    heads: int
    mlp_dim: int
    dropout: float = 0.1

    def __post_init__(self) -> None:
        _check_positive(self, "patch_size", "dim", "depth", "heads", "mlp_dim")


@dataclass(frozen=True, kw_only=True)
class SoftmaxSettings:
    """Softmax attention in every block."""

    last: ClassVar[int] = 0
    guide: ClassVar[str] = "full"
    name: Literal["softmax"] = "softmax"

    def factory(self, tokens: int) -> LayerFactory:
        """The layer for a number of tokens."""
        return SoftmaxAttention


@dataclass(frozen=True, kw_only=True)
class KEPSVGPSettings:
    """KEP-SVGP attention in the last blocks, softmax below; the options are the layer's, ``guide`` a family."""

    name: Literal["kep-svgp"] = "kep-svgp"
    last: int = 1
    rank: int = 10
    merge: Literal["add", "concat", "concat_lowrank"] = "concat"
    projection: Literal["data", "plain"] = "data"
    multiple: int = 10
    prior: Literal["normal", "laplace", "student_t"] = "normal"
    eta: float = 10.0
    penalty: Literal["example", "authors"] = "example"
    scale: float = 1.0
    learn_scale: bool = True
    guide: Literal["full", "diagonal", "lowrank", "delta"] = "full"

    def __post_init__(self) -> None:
        _check_positive(self, "last")

    def factory(self, tokens: int) -> LayerFactory:
        """The layer for a number of tokens."""
        options = {key: value for key, value in asdict(self).items() if key not in ("name", "last", "guide")}
        return KEPSVGPAttention.partial(tokens=tokens, **options)


LayerSettings = SoftmaxSettings | KEPSVGPSettings


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that makes a run, apart from where its data lie."""

    data: DataSettings
    network: NetworkSettings
    layer: LayerSettings
    train: TrainOptions = field(default_factory=TrainOptions)

    def flat(self) -> dict[str, Any]:
        """Every setting by its dotted key."""
        return {f"{part}.{key}": value for part, values in asdict(self).items() for key, value in values.items()}

    def with_changes(self, assignments: Iterable[str]) -> "Settings":
        """These settings with ``key=value`` changes, made together: the last counts where a key comes twice.

        Raises:
            SettingsError: no ``=``, an unknown key, or a value of another kind or out of bounds, named with what is
                known.
        """
        known, changes = self.flat(), {}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals:
                raise SettingsError(f"--set takes key=value, got {assignment!r}")
            if key not in known:
                near = get_close_matches(key, known, n=3)
                guess = f"did you mean {' or '.join(near)}? " if near else ""
                raise SettingsError(f"unknown key {key!r}; {guess}known keys: {', '.join(known)}")
            part, name = key.split(".")
            kind = typing.get_type_hints(type(getattr(self, part)))[name]
            changes.setdefault(part, {})[name] = _parse(key, text, kind)
        try:
            return replace(self, **{part: replace(getattr(self, part), **new) for part, new in changes.items()})
        except ValueError as error:
            raise SettingsError(str(error)) from error


def from_dict(values: dict[str, dict[str, Any]]) -> Settings:
    """Settings from what ``asdict`` made of them, as ``settings.json`` holds it.

    Raises:
        SettingsError: keys that this version does not know or lacks, values of another kind or out of bounds.
    """
    layers = {"softmax": SoftmaxSettings, "kep-svgp": KEPSVGPSettings}
    try:
        kinds = {"data": DataSettings, "network": NetworkSettings, "layer": layers[values["layer"]["name"]]}
        kinds["train"] = TrainOptions
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
    origin = typing.get_origin(kind)
    if origin is Literal:
        if text in typing.get_args(kind):
            return text
        raise SettingsError(f"{key} is one of {', '.join(typing.get_args(kind))}, got {text!r}")
    kinds = typing.get_args(kind) if origin in (types.UnionType, typing.Union) else (kind,)
    if type(None) in kinds and text.lower() == "none":
        return None
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
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    kinds = typing.get_args(kind) or (kind,)
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (float in kinds and isinstance(value, int))


def _check_positive(settings: Any, *names: str) -> None:
    values = {name: getattr(settings, name) for name in names}
    wrong = [f"{name}={value}" for name, value in values.items() if value is not None and value < 1]
    if wrong:
        raise ValueError(f"must be at least 1: {', '.join(wrong)}")
