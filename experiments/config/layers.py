"""Settings of each attention layer; their options and defaults are those of the layer's constructor."""

import functools
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

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
from probattn.attention.kep_svgp_authors import AuthorsKEPSVGPAttention
from probattn.experiments.config.validation import STRICT, Count, Positive, Share


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SoftmaxSettings:
    """Softmax attention in every block."""

    last: ClassVar[int] = 0
    family: ClassVar[str] = "full"
    name: Literal["softmax"] = "softmax"
    dropout: Share = 0.0

    def factory(self, tokens: int | None) -> LayerFactory:
        """Return a factory of the layer for a fixed number of tokens, or None where it varies."""
        return SoftmaxAttention.partial(**_options(self))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class KEPSVGPSettings:
    """KEP-SVGP attention in the ``last`` blocks, softmax attention below.

    ``guide`` is a family and ``guide_scale`` its initial standard deviation relative to the prior's.
    """

    name: Literal["kep-svgp"] = "kep-svgp"
    last: Count | None = 1
    rank: Count = 10
    pair: Literal["er", "ee", "rr"] = "er"
    merge: Literal["add", "concat", "concat_lowrank"] = "concat"
    projection: Literal["data", "plain", "svd"] = "data"
    multiple: Count = 10
    prior: Literal["normal", "laplace", "student_t"] = "normal"
    eta: float = 10.0
    penalty: Literal["example", "authors"] = "example"
    scale: float = 1.0
    learn_scale: bool = True
    residual: Positive | None = None
    mean: Literal["zero", "softmax"] = "zero"
    amplitude: Positive = 0.1
    dropout: Share = 0.0
    guide: Literal["full", "diagonal", "lowrank", "delta"] = "full"
    guide_scale: PositiveFloat = 0.1

    @property
    def family(self) -> families.Family:
        """Family of the guide."""
        return _family(self.guide, self.guide_scale)

    def factory(self, tokens: int | None) -> LayerFactory:
        """Return a factory of the layer for a fixed number of tokens, or None where it varies."""
        _check_merge(self.merge, tokens)
        return KEPSVGPAttention.partial(tokens=tokens, **_options(self, "guide", "guide_scale"))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AuthorsKEPSVGPSettings:
    """KEP-SVGP attention as in its authors' code in the ``last`` blocks, softmax attention below."""

    family: ClassVar[str] = "full"
    name: Literal["kep-svgp-authors"] = "kep-svgp-authors"
    last: Count | None = 1
    rank: Count = 10
    pair: Literal["er", "ee", "rr"] = "er"
    merge: Literal["add", "concat", "concat_lowrank"] = "concat"
    multiple: Count = 10
    eta: float = 10.0

    def factory(self, tokens: int | None) -> LayerFactory:
        """Return a factory of the layer for a fixed number of tokens, or None where it varies."""
        _check_merge(self.merge, tokens)
        return AuthorsKEPSVGPAttention.partial(tokens=tokens, **_options(self))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class KernelSettings:
    """Kernel attention in the ``last`` blocks (None: in every block), softmax attention below."""

    family: ClassVar[str] = "full"
    name: Literal["kernel"] = "kernel"
    last: Count | None = None
    kernel: Literal["rbf", "ard", "exponential"] = "rbf"
    symmetric: bool = False
    variance: float = 1.0
    bias: bool = False

    def factory(self, tokens: int | None) -> LayerFactory:
        """Return a factory of the layer for a fixed number of tokens, or None where it varies."""
        return KernelAttention.partial(**_options(self))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SGPASettings:
    """SGP attention in the ``last`` blocks (None: in every block).

    ``inducing`` is the number of global inducing keys of the decoupled form; None selects the standard form. ``guide``
    is a family, ``guide_scale`` its initial standard deviation relative to the prior's, and ``init_loc`` its option.
    """

    name: Literal["sgpa"] = "sgpa"
    last: Count | None = None
    inducing: Count | None = 16
    kernel: Literal["ard", "exponential", "rbf"] = "ard"
    variance: float = 1.0
    draws: Literal["marginal", "joint"] = "marginal"
    prior: Literal["normal", "laplace", "student_t"] | None = None
    bias: bool = False
    guide: Literal["full", "diagonal", "lowrank", "delta"] = "full"
    guide_scale: PositiveFloat = 0.1
    init_loc: float = 0.0

    @property
    def family(self) -> str | families.Family:
        """Family of the guide; the name alone for the standard form, which has no global site."""
        if self.inducing is None:
            return self.guide
        return functools.partial(_family(self.guide, self.guide_scale), init_loc=self.init_loc)

    def factory(self, tokens: int | None) -> LayerFactory:
        """Return a factory of the layer for a fixed number of tokens, or None where it varies."""
        return SGPAttention.partial(**_options(self, "guide", "guide_scale", "init_loc"))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _CorrelatedSettings:
    """Settings that the dense and the sparse correlated GP layers share."""

    family: ClassVar[str] = "full"
    name: str
    last: Count | None = None
    noise: float = 0.1
    learn_noise: bool = False
    canonical_guide: Literal["posterior", "prior", "learned"] = "posterior"
    collapsed: bool = False
    output: Literal["mean", "draw"] = "draw"
    alpha: float = 0.1
    regulariser_norm: Literal["scalar", "column", "example"] = "scalar"
    bias: bool = False


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CGPSettings(_CorrelatedSettings):
    """Correlated GP attention in the ``last`` blocks (None: in every block)."""

    name: Literal["cgp"] = "cgp"
    noisy_canonical: bool = True
    noisy_output: bool = True

    def factory(self, tokens: int | None) -> LayerFactory:
        """Return a factory of the layer for a fixed number of tokens, or None where it varies."""
        return CGPAttention.partial(**_options(self))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SparseCGPSettings(_CorrelatedSettings):
    """Sparse correlated GP attention in the ``last`` blocks (None: in every block).

    With ``mixtures`` the inducing inputs are mixtures of the tokens' inputs, as in the authors' code.
    """

    name: Literal["sparse-cgp"] = "sparse-cgp"
    inducing: Count = 16
    inducing_keys: Count | None = None
    mixtures: bool = False

    def factory(self, tokens: int | None) -> LayerFactory:
        """Return a factory of the layer for a fixed number of tokens, or None where it varies."""
        if self.mixtures and tokens is None:
            raise ValueError("mixtures of tokens need a fixed number of them: set layer.mixtures=false where it varies")
        return SparseCGPAttention.partial(tokens=tokens if self.mixtures else None, **_options(self, "mixtures"))


LayerSettings = Annotated[
    SoftmaxSettings
    | KEPSVGPSettings
    | AuthorsKEPSVGPSettings
    | KernelSettings
    | SGPASettings
    | CGPSettings
    | SparseCGPSettings,
    Field(discriminator="name"),
]


def _family(name: str, scale: float) -> families.Family:
    """Return a guide family with its initial standard deviation; a point mass has none."""
    family = families.FAMILIES[name]
    return family if family is families.Delta else functools.partial(family, init_scale=scale)


def _check_merge(merge: str, tokens: int | None) -> None:
    if merge != "add" and tokens is None:
        raise ValueError(f"merge={merge} has weights over tokens: set layer.merge=add where their number varies")


def _options(layer: LayerSettings, *others: str) -> dict[str, Any]:
    """Return the settings that are options of the layer's constructor."""
    return {key: value for key, value in asdict(layer).items() if key not in ("name", "last", *others)}
