"""Sparse Gaussian process attention."""

from typing import Literal, cast

import pyro.distributions as dist
from torch import Tensor, nn

from probattn import priors
from probattn.attention import kernels
from probattn.attention.base import ProbabilisticAttention
from probattn.attention.options import check_choice
from probattn.attention.sgpa_forms import Decoupled, Remainder, Standard, Tokens
from probattn.functional import dtypes, errors, padding, sgpa


class SGPAttention(ProbabilisticAttention):
    """SGPA (Chen & Li, ICLR 2023): attention as the posterior of a sparse GP with a symmetric
    kernel, W_q = W_k.

    *Decoupled* (``inducing=M``): M global inducing inputs β for each head, which are vectors of the
    network's residual stream and pass through the block below (see :meth:`follow`); they are N(0,
    I) until the first batch of ``fit`` places them (see :meth:`place`). The program: **u ~ N(0,
    I)** for each head and output, u_β = L u with L Lᵀ = 𝒦_ββ; **g ~ N(0, C)** at the tokens, C = 𝒦
    − 𝒦_qβ 𝒦_ββ⁻¹ 𝒦_βq; f = 𝒦_qβ 𝒦_ββ⁻¹ u_β + g. g's posterior N(C v, C) has the tokens' values v;
    q(u) = N(Lᵀ v_β, T Tᵀ) is the method's N(𝒦_ββ v_β, L T Tᵀ Lᵀ). *Standard* (``inducing=None``):
    the inducing inputs are the tokens' keys, f = g ~ N(0, 𝒦), posterior N(𝒦 v, L T² Lᵀ) with T
    computed from the tokens.

    Sites: ``u``, latent, global, event ``(head, output, inducing index)``, of the decoupled form;
    ``g``, latent, local, event ``(head, token, output)``.

    Args:
        dim: width of the tokens.
        heads: number of heads; must divide ``dim``.
        inducing: M, or None for the standard form.
        kernel: ``"ard"`` (images), ``"exponential"`` (text) or ``"rbf"``.
        variance: initial σ² of the kernel, the variance of g's prior (see
            :class:`KernelAttention`).
        draws: of g, ``"marginal"`` (as in the authors' code; the KL is still that of joint draws)
            or ``"joint"``.
        prior: of ``u``, one of :mod:`probattn.priors` or its name; N(0, I) by default.
        bias: give query and value a bias.

    Raises:
        ValueError: an invalid option, with the valid ones.
    """

    signed = ("kernel", "draws")

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        inducing: int | None = 16,
        kernel: Literal["ard", "exponential", "rbf"] = "ard",
        variance: float = 1.0,
        draws: Literal["marginal", "joint"] = "marginal",
        prior: priors.Prior | str | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(dim, heads)
        if inducing is not None and inducing < 1:
            raise ValueError(
                f"inducing is a positive number, or None for the standard form; got {inducing}"
            )
        check_choice("draws", draws, ("marginal", "joint"))
        if inducing is None and prior is not None:
            raise ValueError(
                "the standard form has no global site for a prior: give inducing=M, or leave prior "
                "out"
            )
        self.inducing = inducing
        self.draws = draws
        self.prior = priors.resolve(prior)
        of_tokens = kernels.resolve(kernel, heads, self.head_dim, variance=variance)
        self.gain = of_tokens.gain
        self.add_projections(symmetric=True, bias=bias)
        self.kernel = of_tokens
        self.form = Standard(dim, heads) if inducing is None else Decoupled(dim, heads, inducing)
        self.remember_placement(is_placed=inducing is None)
        self.out = nn.Linear(dim, dim)

    def signature(self) -> dict[str, int | str]:
        """Return the base signature, and form, kernel, draws and prior."""
        parts = {"inducing": str(self.inducing), "prior": priors.name_of(self.prior)}
        return super().signature() | parts

    def sites(self) -> dict[str, dist.TorchDistribution]:
        """Return the prior of ``u``, in the decoupled form."""
        if self.inducing is None:
            return {}
        # u is whitened, u_β = L u, so prior and guide need no kernel.
        scale = self.out.weight.new_ones(self.heads, self.head_dim, self.inducing)
        return {"u": priors.at(self.prior, scale, event_dim=3)}

    def is_stochastic(self) -> bool:
        """Return True, since g is sampled at the tokens."""
        return True

    def initialise(self, stream: Tensor) -> None:
        """Set the inducing inputs to vectors ``(..., dim)`` seen at the start of the path."""
        if isinstance(self.form, Decoupled):
            vectors = self.form.inducing
            vectors.data.copy_(sgpa.pick_inducing(stream, self.heads, vectors.shape[1]))

    def inducing_points(self) -> Tensor:
        """Return β of each head as this layer's queries, ``(H, M, head_dim)``, in float32 or
        better."""
        vectors = self.along_path(cast(Decoupled, self.form).inducing)
        weight = self.query_value.weight[: self.dim]
        bias = self.query_value.bias
        points = vectors @ weight.unflatten(0, (self.heads, self.head_dim)).mT
        if bias is not None:
            points = points + bias[: self.dim].view(self.heads, 1, self.head_dim)
        return dtypes.at_least_float32(points)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run the program once; arguments, result and errors as in the base class."""
        x = self.checked(x, mask)
        u = self.sample("u", self.sites()["u"]) if self.inducing else None
        remainder = self.remainder(x, mask)
        g = self.sample_local("g", remainder.prior, remainder.posterior)
        return self.output(remainder, u, g)

    def remainder(self, x: Tensor, mask: Tensor | None) -> Remainder:
        """Return the laws of g at checked tokens; pure."""
        points, _, value = self.project(x)
        with self.precise():
            tokens = self._tokens(points, value, mask)
            return self.form(self, tokens, dtypes.at_least_float32(x))

    def output(
        self,
        remainder: Remainder,
        u: Tensor | None,
        g: Tensor,
    ) -> Tensor:
        """Return the output at values of u and g; pure."""
        f = g
        if u is not None and remainder.features is not None:
            with self.precise():
                f = g + remainder.features @ u.mT
        return self.from_heads(f)

    def attention_matrix(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the kernel between tokens ``(..., H, N, N)``, 0 at padding."""
        points, _, value = self.project(self.checked(x, mask))
        with self.precise():
            return self._tokens(points, value, mask).kernel

    def _tokens(self, points: Tensor, value: Tensor, mask: Tensor | None) -> Tokens:
        real, count = padding.real_and_count(mask, points)
        points = self.kernel.scaled(points)
        kernel = padding.on_pairs(self.kernel.between(points, points), real)
        errors.check_finite(kernel, "the kernel of the tokens")
        value = errors.check_finite(padding.rows(value, real), "the values")
        return Tokens(points, kernel, value, real, count)
