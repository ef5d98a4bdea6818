"""The settings of each attention layer, and the layer that they make."""

import functools
import typing
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from probattn import (
    CGPAttention,
    KEPSVGPAttention,
    KernelAttention,
    SGPAttention,
    SoftmaxAttention,
    SparseCGPAttention,
    families,
)
from probattn.attention.base import LayerFactory


@dataclass(frozen=True, kw_only=True)
class SoftmaxSettings:
    """Softmax attention in every block; the options are the layer's."""

    last: ClassVar[int] = 0
    family: ClassVar[str] = "full"
    name: Literal["softmax"] = "softmax"
    dropout: float = 0.0

    def factory(self, tokens: int | None) -> LayerFactory:
        """The layer for a number of tokens, or None where it varies."""
        return SoftmaxAttention.partial(**_options(self))


@dataclass(frozen=True, kw_only=True)
class KEPSVGPSettings:
    """KEP-SVGP attention in the last blocks, softmax below; the options are the layer's, ``guide`` a family."""

    name: Literal["kep-svgp"] = "kep-svgp"
    last: int | None = 1
    rank: int = 10
    pair: Literal["er", "ee", "rr"] = "er"
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
        check_positive(self, "last")

    @property
    def family(self) -> str:
        """The family of the guide."""
        return self.guide

    def factory(self, tokens: int | None) -> LayerFactory:
        """The layer for a number of tokens, or None where it varies."""
        if self.merge != "add" and tokens is None:
            raise ValueError(
                f"merge={self.merge} has weights over tokens: set layer.merge=add where their number varies"
            )
        return KEPSVGPAttention.partial(tokens=tokens, **_options(self, "guide"))


@dataclass(frozen=True, kw_only=True)
class KernelSettings:
    """Kernel attention in the last blocks (None: in every block), softmax below; the options are the layer's."""

    family: ClassVar[str] = "full"
    name: Literal["kernel"] = "kernel"
    last: int | None = None
    kernel: Literal["rbf", "ard", "exponential"] = "rbf"
    symmetric: bool = False
    variance: float = 1.0
    bias: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "last")

    def factory(self, tokens: int | None) -> LayerFactory:
        """The layer for a number of tokens, or None where it varies."""
        return KernelAttention.partial(**_options(self))


@dataclass(frozen=True, kw_only=True)
class SGPASettings:
    """SGP attention in the last blocks (None: in every block); the options are the layer's, ``guide`` a family.

    ``inducing`` is the number of global inducing keys of the decoupled form, None the standard form; ``init_loc`` is
    the family's.
    """

    name: Literal["sgpa"] = "sgpa"
    last: int | None = None
    inducing: int | None = 16
    kernel: Literal["ard", "exponential", "rbf"] = "ard"
    variance: float = 1.0
    draws: Literal["marginal", "joint"] = "marginal"
    prior: Literal["normal", "laplace", "student_t"] | None = None
    bias: bool = False
    guide: Literal["full", "diagonal", "lowrank", "delta"] = "full"
    init_loc: float = 0.0

    def __post_init__(self) -> None:
        check_positive(self, "last", "inducing")

    @property
    def family(self) -> str | families.Family:
        """The family of the guide; of the standard form, which has no site for one, its bare name."""
        if self.inducing is None:
            return self.guide
        return functools.partial(families.FAMILIES[self.guide], init_loc=self.init_loc)

    def factory(self, tokens: int | None) -> LayerFactory:
        """The layer for a number of tokens, or None where it varies."""
        return SGPAttention.partial(**_options(self, "guide", "init_loc"))


@dataclass(frozen=True, kw_only=True)
class _CorrelatedSettings:
    """What the dense and the sparse correlated-GP layers share; the options are the layers'."""

    family: ClassVar[str] = "full"
    name: str
    last: int | None = None
    noise: float = 0.1
    learn_noise: bool = False
    canonical_guide: Literal["posterior", "prior", "learned"] = "posterior"
    collapsed: bool = False
    output: Literal["mean", "draw"] = "draw"
    alpha: float = 0.1
    regulariser_norm: Literal["scalar", "column", "example"] = "scalar"
    bias: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "last")


@dataclass(frozen=True, kw_only=True)
class CGPSettings(_CorrelatedSettings):
    """Correlated GP attention in the last blocks (None: in every block); the options are the layer's."""

    name: Literal["cgp"] = "cgp"
    noisy_canonical: bool = True
    noisy_output: bool = True

    def factory(self, tokens: int | None) -> LayerFactory:
        """The layer for a number of tokens, or None where it varies."""
        return CGPAttention.partial(**_options(self))


@dataclass(frozen=True, kw_only=True)
class SparseCGPSettings(_CorrelatedSettings):
    """Sparse correlated GP attention in the last blocks (None: in every block); the options are the layer's.

    With ``mixtures`` the inducing inputs are mixtures of the tokens', as the authors have them.
    """

    name: Literal["sparse-cgp"] = "sparse-cgp"
    inducing: int = 16
    inducing_keys: int | None = None
    mixtures: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "inducing", "inducing_keys")

    def factory(self, tokens: int | None) -> LayerFactory:
        """The layer for a number of tokens, or None where it varies."""
        if self.mixtures and tokens is None:
            raise ValueError("mixtures of tokens need a fixed number of them: set layer.mixtures=false where it varies")
        return SparseCGPAttention.partial(tokens=tokens if self.mixtures else None, **_options(self, "mixtures"))


LayerSettings = SoftmaxSettings | KEPSVGPSettings | KernelSettings | SGPASettings | CGPSettings | SparseCGPSettings
LAYERS: dict[str, type[LayerSettings]] = {kind.name: kind for kind in typing.get_args(LayerSettings)}
"""Settings of each layer by its name."""


def check_positive(settings: Any, *names: str) -> None:
    """Refuses fields below 1, where they are not None.

    Raises:
        ValueError: naming them with their values.
    """
    values = {name: getattr(settings, name) for name in names}
    wrong = [f"{name}={value}" for name, value in values.items() if value is not None and value < 1]
    if wrong:
        raise ValueError(f"must be at least 1: {', '.join(wrong)}")


def _options(layer: LayerSettings, *others: str) -> dict[str, Any]:
    """The options of the layer's constructor among its settings."""
    return {key: value for key, value in asdict(layer).items() if key not in ("name", "last", *others)}
