"""Kernel-eigen pair sparse variational Gaussian process attention."""

from typing import Literal

import pyro.distributions as dist
import torch
from pyro.nn import PyroParam
from torch import Tensor, nn

from probattn import priors
from probattn.attention import merge as merges
from probattn.attention.base import ProbabilisticAttention
from probattn.attention.projection import DataProjection, PlainProjection
from probattn.functional import dtypes, kep_svgp, ksvd

PAIRS, PROJECTIONS = ("er", "ee", "rr"), ("data", "plain")
PENALTIES = {"example": ksvd.penalty, "authors": ksvd.penalty_of_mean}


class KEPSVGPAttention(ProbabilisticAttention):
    """KEP-SVGP attention (Chen et al., ICML 2024): two GP branches on the singular vectors of the attention kernel.

    The program of one layer: scores E, R by KSVD (eq. 10); **u_d ~ N(0, Λ²)** for each head and output d, shared by
    both branches; F^e = E Λ⁻¹ u and F^r = R Λ⁻¹ u, which have the law (16); merged by (19); one linear map from all
    heads' outputs to ``dim`` (the composition of the paper's s → d map for each head and the output projection).

    Sites: ``u``, latent, global, event ``(head, output, inducing index)``; ``ksvd``, a local factor −η (J/n)² (eq. 11).
    Parameter ``scale``: Λ > 0 ``(head, inducing index)``, the learned singular values of the attention kernel.

    Args:
        dim: width of the tokens.
        heads: number of heads; must divide ``dim``.
        rank: s, the number of singular triplets and of outputs of each head; at most the head width.
        merge: ``"add"`` (any length), ``"concat"`` or ``"concat_lowrank"`` (both need ``tokens``).
        pair: the branches that are merged: ``"er"``, or the symmetric ``"ee"`` or ``"rr"`` (Table 5); J has both.
        projection: ``"data"``, the papers' W_{e|X} = f(X)ᵀ W_e, or ``"plain"``.
        tokens: the number of tokens, if it is fixed; any other number is then an error.
        multiple: f(X) has at most ``rank · multiple`` rows.
        prior: a prior of :mod:`probattn.priors` or its name; N(0, Λ²) by default.
        eta: weight η of the KSVD penalty.
        penalty: ``"example"`` squares J/n of each head and example; ``"authors"`` is the form of the authors' code.
        scale: initial λ.
        learn_scale: learn Λ.
        bias: give query and key a bias.

    Raises:
        ValueError: an invalid option, with the valid ones.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        rank: int,
        merge: Literal["add", "concat", "concat_lowrank"] = "add",
        pair: Literal["er", "ee", "rr"] = "er",
        projection: Literal["data", "plain"] = "data",
        tokens: int | None = None,
        multiple: int = 10,
        prior: priors.Prior | str | None = None,
        eta: float = 1.0,
        penalty: Literal["example", "authors"] = "example",
        scale: float = 1.0,
        learn_scale: bool = True,
        bias: bool = False,
    ) -> None:
        super().__init__(dim, heads)
        self._check(rank, pair, projection, multiple, penalty, scale, eta)
        self.rank, self.tokens, self.pair, self.eta = rank, tokens, pair, eta
        self.prior = priors.resolve(prior)
        self.query_key = nn.Linear(dim, 2 * dim, bias=bias)
        if projection == "plain":
            self.projection = PlainProjection(heads, self.head_dim, rank)
        else:
            rows = min(tokens or rank * multiple, rank * multiple)
            self.projection = DataProjection(heads, self.head_dim, rank, rows=rows)
        self.merge = merges.resolve(merge, tokens, rank)
        self.ksvd_penalty = PENALTIES[penalty]
        self.scale = PyroParam(torch.full((heads, rank), scale), constraint=dist.constraints.positive)
        self.scale_unconstrained.requires_grad_(learn_scale)
        self.out = nn.Linear(heads * rank, dim)

    def signature(self) -> dict[str, int | str]:
        """Return the base signature, and merge, pair, projection and prior."""
        parts = {"merge": type(self.merge).__name__, "pair": self.pair, "projection": type(self.projection).__name__}
        return super().signature() | parts | {"prior": priors.name_of(self.prior)}

    def sites(self) -> dict[str, dist.TorchDistribution]:
        """Return the prior of ``u`` at the current Λ."""
        return {"u": self._prior_at(self.scale)}

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run the program once.

        Args:
            x: ``(*draws, batch, tokens, dim)``.
            mask: ``(batch, tokens)``, True where there is a token.

        Returns:
            ``(*draws, batch, tokens, dim)``, with draws of u as leading dimensions.
        """
        x, scale = self.checked(x, mask), self.scale
        e, r, w_e, w_r = self.scores(x, mask)
        lengths = x.shape[-2] if mask is None else mask.sum(-1, keepdim=True)
        self.penalty("ksvd", lambda: self._weighted_penalty(e, r, w_e, w_r, scale, lengths))
        u = self.sample("u", self._prior_at(scale))
        values = kep_svgp.function_values(self.merge(*({"e": e, "r": r}[branch] for branch in self.pair)), scale, u)
        return dtypes.apply_linear(self.out, self.join_heads(values))

    def scores(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return E and R ``(..., H, N, s)``, zero at padding, and their weights ``(..., H, d, s)`` (eq. 10)."""
        query_key = self.query_key(x).unflatten(-1, (2, self.heads, self.head_dim)).movedim(-3, 0).transpose(-3, -2)
        weights = self.projection(x, mask)
        scores = ksvd.scores(query_key, weights)
        if mask is not None:
            scores = scores.where(mask[:, None, :, None], 0.0)
        return *scores, *weights

    def attention_matrix(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return K_att = φ_q(X) φ_k(X)ᵀ ``(..., H, N, N)``, zero in the columns of padded keys."""
        query, key = map(ksvd.cosine_features, self.split_heads(self.query_key(self.checked(x, mask)), 2))
        matrix = query @ key.mT
        return matrix if mask is None else matrix.where(mask[:, None, None, :], 0.0)

    def checked(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Check x, its mask, and the number of tokens if that is fixed; return x with zeros at padding."""
        x = super().checked(x, mask)
        if self.tokens not in (None, x.shape[-2]):
            hint = 'where the length varies, use merge="add" without tokens, or pad and mask'
            raise ValueError(f"this layer was built for {self.tokens} tokens, got {x.shape[-2]}; {hint}")
        return x

    def _prior_at(self, scale: Tensor) -> dist.TorchDistribution:
        """Return the prior of ``u`` at λ ``(..., heads, rank)``, the same for every output."""
        return priors.at(self.prior, scale.unsqueeze(-2).expand(*scale.shape[:-1], self.rank, -1), event_dim=3)

    def _weighted_penalty(self, *tensors: Tensor | int) -> Tensor:
        *precise, scale, lengths = tensors
        return self.eta * self.ksvd_penalty(*map(dtypes.at_least_float32, precise), scale, lengths)

    def _check(self, rank, pair, projection, multiple, penalty, scale, eta) -> None:
        if not 1 <= rank <= self.head_dim:
            raise ValueError(f"rank must lie in 1..{self.head_dim} = dim / heads, the most singular values; got {rank}")
        choices = (("pair", pair, PAIRS), ("projection", projection, PROJECTIONS), ("penalty", penalty, PENALTIES))
        for option, value, known in choices:
            if value not in known:
                raise ValueError(f"{option} must be one of {', '.join(known)}, got {value!r}")
        if multiple < 1 or scale <= 0 or eta < 0:
            raise ValueError(f"need multiple ≥ 1, scale > 0, eta ≥ 0; got {multiple}, {scale}, {eta}")
