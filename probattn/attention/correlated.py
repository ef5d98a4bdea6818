"""Base of the dense and the sparse correlated-GP layers: projections, output and regulariser."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.attention.canonical import GUIDES, Prior
from probattn.attention.kernels import RBF
from probattn.attention.options import check_choice
from probattn.distributions import ColumnNormal
from probattn.functional import dtypes, errors
from probattn.functional.correlated import Canonical, Correlated
from probattn.functional.gaussian import Covariance

CanonicalGuide = Literal["posterior", "prior", "learned"] | Callable[[int, int], nn.Module]
"""A guide of z_o, by name or as a factory ``(dim, heads) -> module`` (see
:mod:`probattn.attention.canonical`)."""


class CorrelatedAttention(ProbabilisticAttention):
    """Base of :class:`CGPAttention` and :class:`SparseCGPAttention`, which document the options."""

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        noise: float,
        learn_noise: bool,
        canonical_guide: CanonicalGuide,
        collapsed: bool,
        output: Literal["mean", "draw"],
        alpha: float,
        regulariser_norm: Literal["scalar", "column", "example"],
        bias: bool,
        regulariser: Literal["joint", "keys"] = "joint",
    ) -> None:
        super().__init__(dim, heads)
        check_choice("output", output, ("mean", "draw"))
        check_choice("regulariser_norm", regulariser_norm, ("scalar", "column", "example"))
        check_choice("regulariser", regulariser, ("joint", "keys"))
        if not callable(canonical_guide) and canonical_guide not in GUIDES:
            raise ValueError(
                f"canonical_guide must be callable or one of {', '.join(GUIDES)}, got "
                f"{canonical_guide!r}"
            )
        if callable(canonical_guide) and collapsed:
            raise ValueError(
                f"collapsed=True has R in closed form only for the guides {', '.join(GUIDES)}, got "
                f"{canonical_guide!r}"
            )
        if noise <= 0 or alpha < 0:
            raise ValueError(f"need noise > 0 and alpha ≥ 0; got {noise}, {alpha}")
        self.collapsed, self.output, self.alpha, self.regulariser_norm = (
            collapsed,
            output,
            alpha,
            regulariser_norm,
        )
        self.regulariser = regulariser
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=bias)
        self.latent = nn.Linear(dim, dim, bias=bias)
        self.gain = RBF(heads, self.head_dim).gain
        self.scale_rows(self.latent, dim)
        self.scale_rows(self.query_key_value, 2 * dim)
        self.log_scales = nn.Parameter(torch.zeros(2, heads))
        log_noise = torch.full((heads,), noise).log()
        self.log_noise = (nn.Parameter if learn_noise else nn.Buffer)(log_noise)
        self.canonical = (
            canonical_guide if callable(canonical_guide) else GUIDES[canonical_guide]
        )(dim, heads)
        self.canonical_guide = (
            canonical_guide if isinstance(canonical_guide, str) else type(self.canonical).__name__
        )
        self.out = nn.Linear(dim, dim)

    def signature(self) -> dict[str, int | str]:
        """Return the base signature and what determines the law of the output (the guide of z_o if
        it is sampled)."""
        through = {} if self.collapsed else {"canonical_guide": self.canonical_guide}
        return super().signature() | {"output": self.output, "collapsed": self.collapsed} | through

    def has_local_sites(self) -> bool:
        """Return False for the mean output of the collapsed form, else True."""
        return not self.collapsed or self.output == "draw"

    def is_stochastic(self) -> bool:
        """Return False for the mean output of the collapsed form without global sites."""
        return self.has_local_sites() or bool(self.sites())

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run the program once; arguments, result and errors as in the base class."""
        x = self.checked(x, mask)
        query, key, value = self.split_heads(self.query_key_value(x), 3)
        (latent,) = self.split_heads(self.latent(x), 1)
        latents = self.sample_all(self.sites())
        with self.precise():
            law = self.law(self._given(query, key, value, latent, mask), **latents)
            output = (self._collapsed if self.collapsed else self._through_z_o)(
                law, dtypes.at_least_float32(x)
            )
        return dtypes.apply_linear(self.out, self.join_heads(output))

    @abstractmethod
    def law(self, given: dict[str, Any], **latents: Tensor) -> Correlated:
        """Return the joint law at the tokens.

        Args:
            given: the fields of :class:`Correlated`.
            latents: values of the global sites by name.
        """

    def attention_matrix(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the matrix ``(..., H, N, N)`` that maps values to the mean output, 0 at
        padding."""
        x = self.checked(x, mask)
        query, key, _ = self.split_heads(self.query_key_value(x), 3)
        (latent,) = self.split_heads(self.latent(x), 1)
        unit = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device).expand(
            *x.shape[:-2], self.heads, -1, -1
        )
        latents = self.sample_all(self.sites())
        with self.precise():
            return self.law(self._given(query, key, unit, latent, mask), **latents).mean

    def _given(
        self, query: Tensor, key: Tensor, value: Tensor, latent: Tensor, mask: Tensor | None
    ) -> dict[str, Any]:
        """Return the fields of :class:`Correlated`, from projections ``(..., H, N, head_dim)``."""
        query, key, value, latent = map(dtypes.at_least_float32, (query, key, value, latent))
        real = None if mask is None else mask.unsqueeze(-2)
        return {
            "query": query,
            "key": key,
            "latent": latent,
            "value": value if real is None else value.where(real.unsqueeze(-1), 0.0),
            "scales": dtypes.at_least_float32(self.log_scales).exp(),
            "noise": (2 * dtypes.at_least_float32(self.log_noise)).exp(),
            "real": real,
            "count": query.shape[-2]
            if mask is None
            else mask.sum(-1, keepdim=True, dtype=query.dtype),
        }

    def weight(self, law: Correlated) -> float | Tensor:
        """Return α divided by the norm of R: 1, the columns of all heads, or these times each
        example's real tokens."""
        if self.regulariser_norm == "example" or self.alpha == 0:
            return self.alpha
        tokens = law.count if self.regulariser_norm == "scalar" else 1
        return self.alpha / (
            self.dim * (tokens.squeeze(-1) if isinstance(tokens, Tensor) else tokens)
        )

    def _through_z_o(self, law: Correlated, x: Tensor) -> Tensor:
        """Sample z_o, observe z_k and z_q = ν given it (CGP paper, eqs. 28 and 42), and sample the
        output given it."""
        prior, weight = ColumnNormal(torch.zeros_like(law.value), law.prior), self.weight(law)
        canonical = self.canonical(law, x)
        if isinstance(
            canonical, Canonical
        ):  # the prior object itself where that is the guide: no density counts
            canonical = (
                prior
                if canonical.loc is None
                else ColumnNormal(canonical.loc, canonical.covariance)
            )
        z_o = self.sample_local("z_o", prior, canonical, regulariser=True, weight=weight)
        query, key = law.means(z_o)
        errors.check_finite(query, "the mean of z_q given z_o")
        if self.alpha > 0 and self.is_scored():
            of_regulariser: dict[str, Any] = {"regulariser": True, "weight": weight}
            self.observe(
                "z_k", ColumnNormal(key, law.key_covariance), law.observed_key, **of_regulariser
            )
            if self.regulariser == "joint":
                self.observe(
                    "nu", ColumnNormal(query, law.query_covariance), law.mean, **of_regulariser
                )
        return self._output(query, law.query_covariance)

    def _collapsed(self, law: Correlated, x: Tensor) -> Tensor:
        """Add α R in closed form (CGP paper, eq. 28), and sample the output given z_k alone."""
        output = errors.check_finite(law.mean, "ν, the mean of z_q given z_k")
        if self.alpha > 0 and self.is_scored():
            if self.regulariser == "keys":
                regulariser = law.key_evidence()
            else:  # no other guide may be collapsed
                regulariser = cast(Prior, self.canonical).regulariser(law, x)
            self.factor("regulariser", self.weight(law) * regulariser.sum(-1), regulariser=True)
        return self._output(output, law.predictive)

    def _output(self, loc: Tensor, covariance: Covariance) -> Tensor:
        """Sample z_q, whose posterior is its prior, or return its mean."""
        if self.output == "mean":
            return loc
        law = ColumnNormal(loc, covariance)
        return self.sample_local("z_q", law, law)
