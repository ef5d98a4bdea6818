"""The settings of one run: what a preset is, what ``--set key=value`` changes, what ``settings.json`` keeps."""

import types
import typing
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
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


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """The vision transformer."""

    patch_size: int
    dim: int
    depth: int
    heads: int
    mlp_dim: int
    dropout: float = 0.1


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
        """These settings with ``key=value`` changes.

        Raises:
            SettingsError: no ``=``, an unknown key, or a value of another kind, named with what is known.
        """
        settings = self
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals:
                raise SettingsError(f"--set takes key=value, got {assignment!r}")
            known = settings.flat()
            if key not in known:
                raise SettingsError(f"unknown key {key!r}; known keys: {', '.join(known)}")
            part, name = key.split(".")
            group = getattr(settings, part)
            value = _parse(key, text, typing.get_type_hints(type(group))[name])
            try:
                settings = replace(settings, **{part: replace(group, **{name: value})})
            except ValueError as error:
                raise SettingsError(f"{assignment}: {error}") from error
        return settings


def from_dict(values: dict[str, dict[str, Any]]) -> Settings:
    """Settings from what ``asdict`` made of them, as ``settings.json`` holds it.

    Raises:
        SettingsError: keys that this version does not know or lacks.
    """
    layers = {"softmax": SoftmaxSettings, "kep-svgp": KEPSVGPSettings}
    try:
        kinds = {"data": DataSettings, "network": NetworkSettings, "layer": layers[values["layer"]["name"]]}
        return Settings(**{part: kind(**values[part]) for part, kind in {**kinds, "train": TrainOptions}.items()})
    except (KeyError, TypeError) as error:
        raise SettingsError(f"these settings are of another version of probattn: {error}") from error


def _parse(key: str, text: str, kind: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin is Literal:
        if text in typing.get_args(kind):
            return text
        raise SettingsError(f"{key} is one of {', '.join(typing.get_args(kind))}, got {text!r}")
    if origin in (types.UnionType, typing.Union):
        if text.lower() == "none":
            return None
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError) as error:
        raise SettingsError(f"{key} takes {kind.__name__}, got {text!r}") from error
