"""Base of the dense and the sparse correlated-GP layers: projections, output and regulariser."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from probattn.attention.base import ProbabilisticAttention
from probattn.attention.canonical import GUIDES, Prior
from probattn.attention.kernels import RBF
from probattn.attention.options import check_choice, check_positive
from probattn.distributions import ColumnNormal
from probattn.functional import dtypes, errors, padding
from probattn.functional.correlated import Canonical, Correlated
from probattn.functional.gaussian import Covariance

CanonicalGuide = Literal["posterior", "prior", "learned"] | Callable[[int, int], nn.Module]
"""A guide of z_o, by name or as a factory ``(dim, heads) -> module`` (see
:mod:`probattn.attention.canonical`)."""


class CorrelatedAttention(ProbabilisticAttention):
    """Base of :class:`CGPAttention`, which documents the options, :class:`SparseCGPAttention` and
    :class:`RFFCGPAttention`."""

    signed: tuple[str, ...] = ("output", "collapsed")
    regulariser = "joint"  # or "keys", for R on log p(z_k) alone

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        noise: float = 0.1,
        learn_noise: bool = False,
        canonical_guide: CanonicalGuide = "posterior",
        collapsed: bool = False,
        output: Literal["mean", "draw"] = "draw",
        alpha: float = 0.1,
        regulariser_norm: Literal["scalar", "column", "example"] = "scalar",
        bias: bool = False,
    ) -> None:
        super().__init__(dim, heads)
        check_choice("output", output, ("mean", "draw"))
        check_choice("regulariser_norm", regulariser_norm, ("scalar", "column", "example"))
        check_positive(noise=noise)
        if not alpha >= 0:
            raise ValueError(f"need alpha ≥ 0, got {alpha}")
        self.collapsed = collapsed
        self.output = output
        self.alpha = alpha
        self.regulariser_norm = regulariser_norm
        self.gain = RBF(heads, self.head_dim).gain
        self.add_projections(symmetric=False, bias=bias)
        self.latent = nn.Linear(dim, dim, bias=bias)
        self.scale_rows(self.latent, dim)
        self.log_scales = nn.Parameter(torch.zeros(2, heads))
        self.log_noise = self.log_of(noise, heads, learned=learn_noise)
        if isinstance(canonical_guide, str):
            check_choice("canonical_guide", canonical_guide, GUIDES)
            self.canonical: nn.Module = GUIDES[canonical_guide](dim, heads)
            self.canonical_guide: str = canonical_guide
        elif collapsed:
            raise ValueError(
                f"with collapsed=True canonical_guide is one of {', '.join(GUIDES)}, whose R has a "
                "closed form"
            )
        else:
            self.canonical = canonical_guide(dim, heads)
            self.canonical_guide = type(self.canonical).__name__
        self.out = nn.Linear(dim, dim)

    def signature(self) -> dict[str, int | str]:
        """Return the base signature and what determines the law of the output (the guide of z_o if
        it is sampled)."""
        through = {} if self.collapsed else {"canonical_guide": self.canonical_guide}
        return super().signature() | through

    def has_local_sites(self) -> bool:
        """Return False for the mean output of the collapsed form, else True."""
        return not self.collapsed or self.output == "draw"

    def is_stochastic(self) -> bool:
        """Return False for the mean output of the collapsed form without global sites."""
        return self.has_local_sites() or bool(self.sites())

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run the program once; arguments, result and errors as in the base class."""
        x = self.checked(x, mask)
        law = self.law(x, mask)
        run = self._collapsed if self.collapsed else self._through_z_o
        with self.precise():
            output = run(law, dtypes.at_least_float32(x))
        return self.from_heads(output)

    def attention_matrix(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the matrix ``(..., H, N, N)`` that maps values to the mean output, 0 at
        padding."""
        x = self.checked(x, mask)
        unit = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
        law = self.law(x, mask, unit.expand(*x.shape[:-2], self.heads, -1, -1))
        with self.precise():
            return law.mean

    def law(
        self,
        x: Tensor,
        mask: Tensor | None,
        value: Tensor | None = None,
    ) -> Correlated:
        """Return the joint law at checked tokens, and at samples of the global sites.

        Args:
            x, mask: as for the layer.
            value: values ``(..., H, N, d)`` in place of the tokens' own.
        """
        with self.precise():
            latents = self.sample_all(self.sites())
        query, key, latent, own = self.points(x, **latents)
        real, count = padding.real_and_count(mask, query)
        value = own if value is None else dtypes.at_least_float32(value)
        with self.precise():
            return self.law_of(
                query=query,
                key=key,
                latent=latent,
                value=padding.rows(value, real),
                scales=dtypes.at_least_float32(self.log_scales).exp(),
                noise=(2 * dtypes.at_least_float32(self.log_noise)).exp(),
                real=real,
                count=count,
            )

    def points(self, x: Tensor, **latents: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and latent inputs ``(..., H, N, width)``, and values
        ``(..., H, N, head_dim)``, of checked tokens and values of the global sites."""
        query, key, value = self.project(x)
        latent = self.split_heads(dtypes.at_least_float32(self.latent(x)), 1)
        return query, key, latent.squeeze(0), value

    @abstractmethod
    def law_of(self, **given: Any) -> Correlated:
        """Return the joint law with these fields of :class:`Correlated`."""

    def weight(self, law: Correlated) -> float | Tensor:
        """Return α divided by the norm of R: 1, the columns of all heads, or these times each
        example's real tokens."""
        if self.alpha == 0 or self.regulariser_norm == "example":
            return self.alpha
        if self.regulariser_norm == "column":
            return self.alpha / self.dim
        tokens = law.count.squeeze(-1) if isinstance(law.count, Tensor) else law.count
        return self.alpha / (self.dim * tokens)

    def _through_z_o(self, law: Correlated, x: Tensor) -> Tensor:
        """Sample z_o, observe z_k and z_q = ν given it (CGP paper, eqs. 28 and 42), and sample the
        output given it."""
        prior = ColumnNormal(torch.zeros_like(law.value), law.prior)
        canonical = self.canonical(law, x)
        if isinstance(canonical, Canonical):
            loc, covariance = canonical
            # The prior object itself where that is the guide: no density counts.
            canonical = prior if loc is None else ColumnNormal(loc, covariance)
        of_regulariser: dict[str, Any] = {"regulariser": True, "weight": self.weight(law)}
        z_o = self.sample_local("z_o", prior, canonical, **of_regulariser)
        query, key = law.means(z_o)
        errors.check_finite(query, "the mean of z_q given z_o")
        if self.alpha > 0 and self.is_scored():
            of_key = ColumnNormal(key, law.key_covariance)
            self.observe("z_k", of_key, law.observed_key, **of_regulariser)
            if self.regulariser == "joint":
                of_query = ColumnNormal(query, law.query_covariance)
                self.observe("nu", of_query, law.mean, **of_regulariser)
        return self._output(query, lambda: law.query_covariance)

    def _collapsed(self, law: Correlated, x: Tensor) -> Tensor:
        """Add α R in closed form (CGP paper, eq. 28), and sample the output given z_k alone."""
        output = errors.check_finite(law.mean, "ν, the mean of z_q given z_k")
        if self.alpha > 0 and self.is_scored():
            if self.regulariser == "keys":
                regulariser = law.key_evidence()
            else:
                regulariser = cast(Prior, self.canonical).regulariser(law, x)
            self.factor("regulariser", self.weight(law) * regulariser.sum(-1), regulariser=True)
        return self._output(output, lambda: law.predictive)

    def _output(self, mean: Tensor, covariance: Callable[[], Covariance]) -> Tensor:
        """Sample z_q, whose posterior is its prior, or return its mean, without the covariance."""
        if self.output == "mean":
            return mean
        law = ColumnNormal(mean, covariance())
        return self.sample_local("z_q", law, law)
